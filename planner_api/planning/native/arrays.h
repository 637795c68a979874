/* The kernels' arrays. Each field is one machine word: a number, or where an array begins. `native.Struct` reads here
 * what a struct has, and fills it in from Python by name. */
#ifndef HOPE_ARRAYS_H
#define HOPE_ARRAYS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

typedef int64_t word;

#define INLINE static inline __attribute__((always_inline))
#define EXPORTED __attribute__((visibility("default")))

/* judge/ways.py */
enum { TENTHS = 10, AXES = 2, FIELDS = 7, RANK = 16 };
enum { HOME, TENTH, LOW, HIGH, PARTS, AXIS, CHAINED };
enum { WHOLE = -1, NEVER = -2 };

/* judge/arrays.py */
enum { NOTED, REACHED, RETIMED };
enum { DRAWS = 32 };

static const double FULL = 1.0 + 1e-9; /* what shares may add up to: 1, with room for rounding */

/* What parts read, by read (E, one behind the other, op by op) and axis of the output.
 *
 * axis: (E, AXES) along which axis of a tensor parts read some of it, or WHOLE, or NEVER.
 * span: (E, AXES) how long that is.
 * at: (E, AXES) from where on `low` and `high` say what is read; -1: what is written.
 * low, high: by the start and the stop of a part: the start and the stop of what it reads. */
typedef struct {
    const word *axis;
    const word *span;
    const word *at;
    const word *low;
    const word *high;
} Needs;

/* What may be cut, of n ops, E reads (one behind the other, op by op), P processors, L places; D ops may be cut.
 *
 * row: (n,) the op's row in the next two; -1: it stays whole.
 * part_us: (D, AXES, TENTHS + 1, TENTHS + 1, P) what the part between two tenths takes.
 * more_us: (D, AXES, P) what one more element along the axis adds to that, where a chain makes a part larger.
 * axes, extent: (n, AXES) the axis of the output, -1 for none, and how long it is.
 * border: (n, AXES, TENTHS + 1) where the tenths lie.
 * needs: what parts read.
 * fixed, slope: (T, L, L) microseconds that moving some of a tensor takes, and more in proportion to its size.
 * glue: (T, RANK) microseconds that copying the tensor takes where it is sliced or joined along an axis.
 * option: (O * 7 K,) the best cuts of op i, from `option_at[i]` to `option_at[i + 1]`, as in `State.mode`. */
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

/* A problem of n ops, T tensors, P processors, L places. `x_at[i]:x_at[i + 1]` is the slice of `x` of `i`.
 *
 * latency, share: (n, P), see `Problem`.
 * rivals: (P, P) True where two processors share a resource.
 * uses: the resources of each processor.
 * near: the resources of each processor's memory.
 * vary: (n, P) what latencies are multiplied by: 1, but in a replay of runs that are not alike.
 * place, launch, lag, slow: (P,) see `Machine`; `slow` is slowdown - 1.
 * producer: (T,) op or -1.
 * cost: (T, L, L) microseconds.
 * busy: (L, L) queue or -1; carried: True where a queue is on the way; hop: see `Machine`.
 * host: its index among the places.
 * length: ops that fill a resource; slots: resources times `length`.
 * release, due: (n,) microseconds. The search may shift `due`.
 * export: (n, P) longest way to the host of an output written by the op there that no queue carries.
 * tail: (n,) the shortest that can follow each op's finish, less what is due.
 * queued: True where an output may need a queue.
 * launches: True where newly taking in a tensor costs anything.
 * waits: True where an op may have to wait for what another one fetches.
 * cuttable: True where an op may be cut; ways: how.
 * most: K, in so many parts an op can be; width: fields of a mode; columns: see `State`. */
typedef struct {
    word ops;
    word processors;
    word places;
    word front;
    const double *latency;
    const double *share;
    const double *vary;
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

/* A plan of ops with up to K parts, what is known before each position, and scratch space for one trial.
 *
 * What has been moved where is kept by tensor, part and column: a column is a place, or, behind all places and where
 * launches cost anything, a processor that has taken the tensor in. Part k of op i has the number `i * most + k`.
 *
 * mode: (n * K * 7,) see `ways.HOME`; undo, best: what a trial changed, one row a change; the best met.
 * sequence, position: (n,) ops by position; positions by op.
 * start, done: (n,) when an op begins, and when its outputs are on the host. Where ops are cut `start` is no
 *     sooner than that of anything before it on its resources or that it reads from: in this order everything
 *     takes as long.
 * finish, spent: (n * K,) microseconds; `spent` is how long a part takes.
 * holder, key, when: (T * K * C,) position of the op that first brings it there (n: nobody); what of it that is;
 *     when it arrives.
 * front_at: (n + 1, 2 R W + Q + 1) before a position: ends and shares that each resource counts, latest first;
 *     when each queue is done; the largest `done - due` so far.
 * through: (n * K,) of what lies behind the window: microseconds from its start to the end, less what is due.
 * next_at: (n + 1, 2 R W) the same of the parts that follow on each resource from a position on, with their
 *     shares, longest first.
 * bypass_at: (n + 1,) longest path that jumps from before the window to a position or beyond.
 * other fields: scratch; `mark` holds the number of the trial in which something was brought there. */
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

/* What the annealing of one window knows of the rest of the plan.
 *
 * low, high: first position that may change, one past the last.
 * reach_move, reach_change: (n,) one past the last position whose transfers an op can alter when moved or changed.
 * saving: (n,) how much of what is paid past the window concerns the op.
 * far: (n,) last position of a reader.
 * crossing: ops that someone past the window reads. */
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
