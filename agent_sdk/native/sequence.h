/* The sequence of subgraphs that ends a network soonest: the loops of `agent_sdk/scheduling/sequence.py`, which states
 * the rule. A decision of a policy asks for one per job, thousands of times a second. */
#ifndef HOPE_SEQUENCE_H
#define HOPE_SEQUENCE_H
#include <stdint.h>

#define NEVER (INT64_C(1) << 60)    /* a latency that stands for "cannot run there" */
enum { MOST_UNITS = 256 };

/* `table[(p * units + first) * units + last]` is a latency, `from` the first unit to run. `answer`: the end, then last
 * unit and processor of the first subgraph, then first unit, last unit and processor of the second, -1 for none. */
static void best_sequence(const int64_t *table, int units, int processors, int from, const int64_t *free_at,
                          int64_t now, int64_t *answer) {
    int64_t end[MOST_UNITS + 1];
    int16_t first_of[MOST_UNITS + 1], processor_of[MOST_UNITS + 1];
    answer[0] = 2 * NEVER;
    answer[1] = answer[2] = answer[3] = answer[4] = answer[5] = -1;
    if (units > MOST_UNITS) return;
    end[from] = now;
    for (int until = from + 1; until <= units; until++) {
        end[until] = 2 * NEVER;
        for (int first = from; first < until; first++) {
            if (end[first] >= NEVER + now) continue;
            for (int p = 0; p < processors; p++) {
                int64_t ns = table[((int64_t)p * units + first) * units + until - 1];
                int64_t found = (end[first] > free_at[p] ? end[first] : free_at[p]) + ns;
                if (ns < NEVER && found <= end[until]) {
                    end[until] = found;
                    first_of[until] = (int16_t)first;
                    processor_of[until] = (int16_t)p;
                }
            }
        }
    }
    if (end[units] >= 2 * NEVER) return;
    int at = units;
    for (; first_of[at] != from; at = first_of[at]) {
        answer[3] = first_of[at];
        answer[4] = at - 1;
        answer[5] = processor_of[at];
    }
    answer[0] = end[units];
    answer[1] = at - 1;
    answer[2] = processor_of[at];
}
#endif
