/* The kernels' arrays. Each field is one machine word, in the order of the tuple of the same name in Python, whose
 * docstring says what it holds, behind the sizes that Python knows from shapes. `native.packed` writes them, and a test
 * compares names and types. */
#ifndef HOPE_ARRAYS_H
#define HOPE_ARRAYS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

typedef int64_t word;

#define INLINE static inline __attribute__((always_inline))
#define EXPORTED __attribute__((visibility("default")))

/* judge/ways.py */
enum { TENTHS = 10, AXES = 2, FIELDS = 7 };
enum { HOME, TENTH, LOW, HIGH, PARTS, AXIS, CHAINED };
enum { WHOLE = -1, NEVER = -2 };

/* judge/arrays.py */
enum { NOTED, REACHED, RETIMED };
enum { DRAWS = 32 };

static const double FULL = 1.0 + 1e-9; /* what shares may add up to: 1, with room for rounding */

typedef struct {
    const word *axis;
    const word *span;
    const word *at;
    const word *low;
    const word *high;
} Needs;

typedef struct {
    const word *row;
    const double *part_us;
    const double *more_us;
    const word *axes;
    const word *extent;
    const word *border;
    Needs needs;
    const double *fixed;
    const double *slope;
    const double *glue;
    const word *option_at;
    const word *option;
} Ways;

typedef struct {
    word ops;
    word processors;
    word places;
    word front;
    const double *latency;
    const double *share;
    const bool *rivals;
    const word *uses_at;
    const word *uses;
    const word *near_at;
    const word *near;
    const word *place;
    const double *launch;
    const double *lag;
    const double *slow;
    const word *producer;
    const double *cost;
    const word *busy;
    const bool *carried;
    const word *hop;
    word host;
    word length;
    word slots;
    const double *release;
    const double *due;
    const bool *is_output;
    const word *reads_at;
    const word *reads;
    const word *writes_at;
    const word *writes;
    const word *readers_at;
    const word *readers;
    const word *before_at;
    const word *before;
    const word *after_at;
    const word *after;
    const double *export;
    const double *tail;
    word queued;
    word launches;
    word waits;
    word cuttable;
    word most;
    word width;
    word columns;
    Ways ways;
} Arrays;

typedef struct {
    word *mode;
    word *undo;
    word *best;
    word *sequence;
    word *position;
    word *best_sequence;
    double *start;
    double *done;
    double *finish;
    double *spent;
    word *holder;
    word *key;
    double *when;
    word *mark;
    word *new_key;
    double *new_when;
    word *log;
    double *paid;
    double *front_at;
    double *front;
    double *new_front;
    double *old_finish;
    double *new_spent;
    double *through;
    double *next_at;
    double *bypass_at;
    word *changed;
    word *touched;
    word *way;
    double *turns;
    double *draws;
    word *counts;
} State;

typedef struct {
    word crossings;
    word low;
    word high;
    const word *reach_move;
    const word *reach_change;
    const double *saving;
    const word *far;
    const word *crossing;
} Window;

INLINE double larger(double a, double b) { return a < b ? b : a; }
INLINE double smaller(double a, double b) { return b < a ? b : a; }
INLINE word more(word a, word b) { return a < b ? b : a; }
INLINE word less(word a, word b) { return b < a ? b : a; }

#endif
