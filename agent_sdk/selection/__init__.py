"""Who answers: the plan or a single processor, decided by measuring."""
