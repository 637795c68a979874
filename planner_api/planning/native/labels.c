/* Exact plans of small pieces, level by level (exact/articulation.py says how). */
#include "arrays.h"

enum { NO_MATTER = 255 }; /* the source of a tensor that everybody has taken in */

/* A piece of a graph: m ops in a topological order, t tensors that they read, P processors.
 *
 * latency: (m, P) microseconds.
 * rivals: (P, P) processors that never run together.
 * before: (m,) bit set of each op's predecessors in the piece.
 * reads_at, reads: the tensors each op reads.
 * readers: (t,) bit set of the ops that read the tensor.
 * producer: (t,) op, or -1 for tensors that are there when the piece begins.
 * cost: (t, L, L) microseconds from place to place.
 * place: (P + 1,) place of each processor, and the host.
 * mates: (P,) bit set of the processors of the same place.
 * launch: (P,) what an op pays that newly takes in a tensor made elsewhere.
 * lag: (P + 1,) what lies between a finish and the moment when another processor can take in what was made.
 * export_us: (m, P) what must still follow the op's finish on that processor before the end.
 * tail_us: (m,) lower bound on the time from the op's finish to the end of the piece.
 * weights: (w, P) rows of processor weights of which at most 1 in sum is busy at any time.
 * work: (w, m) smallest weighted latency of each op.
 * independent: True where no two processors share a resource.
 * most_lag: the largest of `lag`. */
typedef struct {
    word ops;
    word processors;
    word places;
    word tensors;
    word rows;
    const double *latency;
    const bool *rivals;
    const word *before;
    const word *reads_at;
    const word *reads;
    const word *readers;
    const word *producer;
    const double *cost;
    const word *place;
    const word *mates;
    const double *launch;
    const double *lag;
    const double *export_us;
    const double *tail_us;
    const double *weights;
    const double *work;
    word independent;
    double most_lag;
} Piece;

/* Partial schedules of a piece, one a row.
 *
 * done: (k,) ops done, as bit sets.
 * latest: (k,) start of the op appended last.
 * free: (k, P) when each processor is free, not before `latest`.
 * finish: (k, m) finish of the ops that someone waits for; 0 where it no longer matters.
 * peak: (k,) latest finish plus export so far.
 * where: (k, t, 2) of each live tensor: the set of processors that made it or took it in, and where it was made.
 * bound: (k,) no completion ends before it.
 * parent, op, processor: (k,) the label of the level before, and what was appended to it, where. */
typedef struct {
    word count;
    word *done;
    double *latest;
    double *free;
    double *finish;
    double *peak;
    uint16_t *where;
    double *bound;
    word *parent;
    word *op;
    word *processor;
} Labels;

/* Take in from `now` on what an op reads, in the child's row of places; when moves and a launch are done. */
static double take_in(const Piece *p, uint16_t *where, word op, word here, word after, double now) {
    bool launched = false;
    word everywhere = ((word)1 << p->processors) - 1;
    for (word r = p->reads_at[op]; r < p->reads_at[op + 1]; r++) {
        word tensor = p->reads[r];
        uint16_t *at = where + 2 * tensor;
        if (!(at[0] >> here & 1)) {
            launched = true;
            if (!(at[0] & p->mates[here]))
                now += p->cost[(tensor * p->places + p->place[at[1]]) * p->places + p->place[here]];
            at[0] |= (uint16_t)(1 << here);
        }
        if (!(p->readers[tensor] & ~after)) {
            at[0] = at[1] = 0;
        } else if (at[0] == everywhere && p->most_lag == 0.0) {
            at[1] = NO_MATTER;
        }
    }
    return launched ? now + p->launch[here] : now;
}

/* When all that an op reads can be taken in on a processor that is free then. */
static double ready(const Piece *p, const Labels *l, word label, word op, word here) {
    double begin = l->free[label * p->processors + here];
    for (word r = p->reads_at[op]; r < p->reads_at[op + 1]; r++) {
        word tensor = p->reads[r], source = l->where[(label * p->tensors + tensor) * 2 + 1];
        double exists = p->producer[tensor] < 0 ? 0.0 : l->finish[label * p->ops + p->producer[tensor]];
        if (p->most_lag > 0.0 && source != here) exists += p->lag[source];
        begin = larger(begin, exists);
    }
    return begin;
}

/* Whether an op that is not done yet reads what another made. */
static bool awaited(const Piece *p, word other, word after) {
    for (word op = 0; op < p->ops; op++)
        if (p->before[op] >> other & 1 && !(after >> op & 1)) return true;
    return false;
}

/* Fill the child's finishes; no completion of it ends before what is returned, which is at least `low`. */
static double outlook(const Piece *p, const Labels *l, word label, const Labels *c, word child, word op, double now,
                      word after, double earliest, double low) {
    const double *free = c->free + child * p->processors;
    double *finish = c->finish + child * p->ops;
    for (word other = 0; other < p->ops; other++) {
        double value = other == op ? now : l->finish[label * p->ops + other];
        finish[other] = 0.0;
        if (after >> other & 1) {
            if (value > earliest) low = larger(low, value + p->tail_us[other]);
            if (value + p->most_lag > earliest && awaited(p, other, after)) finish[other] = value;
        } else {
            double fastest = INFINITY;
            for (word q = 0; q < p->processors; q++)
                fastest = smaller(fastest, free[q] + p->latency[other * p->processors + q]);
            low = larger(low, fastest + p->tail_us[other]);
        }
    }
    for (word w = 0; w < p->rows; w++) {
        double total = p->independent ? 0.0 : earliest;
        for (word q = 0; p->independent && q < p->processors; q++) total += p->weights[w * p->processors + q] * free[q];
        for (word other = 0; other < p->ops; other++)
            if (!(after >> other & 1)) total += p->work[w * p->ops + other];
        low = larger(low, total);
    }
    return low;
}

/* Make the child that appends an op on a processor to a label; false if it cannot end before `limit`. */
static bool append(const Piece *p, const Labels *l, word label, const Labels *c, word child, word op, word here,
                   double limit) {
    uint16_t *where = c->where + child * p->tensors * 2;
    for (word k = 0; k < 2 * p->tensors; k++) where[k] = l->where[label * p->tensors * 2 + k];
    word after = l->done[label] | (word)1 << op;
    double begin = ready(p, l, label, op, here), now = take_in(p, where, op, here, after, begin);
    now += p->latency[op * p->processors + here];
    double top = larger(l->peak[label], now + p->export_us[op * p->processors + here]);
    if (larger(top, now + p->tail_us[op]) >= limit) return false;
    for (word tensor = 0; tensor < p->tensors; tensor++)
        if (p->producer[tensor] == op) {
            where[2 * tensor] = (uint16_t)(1 << here);
            where[2 * tensor + 1] = (uint16_t)here;
        }
    double *free = c->free + child * p->processors, earliest = INFINITY;
    for (word q = 0; q < p->processors; q++) {
        free[q] = larger(begin, l->free[label * p->processors + q]);
        if (p->rivals[here * p->processors + q]) free[q] = larger(free[q], now);
        earliest = smaller(earliest, free[q]);
    }
    double low = outlook(p, l, label, c, child, op, now, after, earliest, top);
    if (low >= limit) return false;
    c->parent[child] = label;
    c->op[child] = op;
    c->processor[child] = here;
    c->done[child] = after;
    c->latest[child] = begin;
    c->peak[child] = top;
    c->bound[child] = low;
    return true;
}

/* All children of a level's labels that may still end before `limit`: how many; -1 when there was no room for them. */
EXPORTED word hope_expand(const Piece *p, const Labels *l, const Labels *children, double limit) {
    word count = 0;
    for (word label = 0; label < l->count; label++)
        for (word op = 0; op < p->ops; op++) {
            if (l->done[label] >> op & 1 || p->before[op] & ~l->done[label]) continue;
            for (word here = 0; here < p->processors; here++) {
                if (p->latency[op * p->processors + here] == INFINITY) continue;
                if (count == children->count) return -1;
                count += append(p, l, label, children, count, op, here, limit);
            }
        }
    return count;
}

/* Whether a label is nowhere later than another with the same ops done, and has every tensor where that has it. */
static bool dominates(const Piece *p, const Labels *l, word one, word other) {
    if (l->peak[one] > l->peak[other] || l->latest[one] > l->latest[other]) return false;
    for (word q = 0; q < p->processors; q++)
        if (l->free[one * p->processors + q] > l->free[other * p->processors + q]) return false;
    for (word t = 0; t < p->tensors; t++) {
        const uint16_t *here = l->where + (one * p->tensors + t) * 2, *there = l->where + (other * p->tensors + t) * 2;
        if ((here[0] & there[0]) != there[0] || (here[1] != there[1] && here[1] != NO_MATTER)) return false;
    }
    for (word op = 0; op < p->ops; op++)
        if (l->finish[one * p->ops + op] > l->finish[other * p->ops + op]) return false;
    return true;
}

/* Of `count` labels listed by ops done, then by bound: those that no kept one with the same ops done dominates. They
 * stand first in `order` afterwards; returns how many there are. */
EXPORTED word hope_undominated(const Piece *p, word *order, word count, const Labels *l) {
    word kept = 0, first = 0, before = -1;
    for (word position = 0; position < count; position++) {
        word label = order[position], rival = first;
        if (l->done[label] != before) {
            before = l->done[label];
            rival = first = kept;
        }
        while (rival < kept && !dominates(p, l, order[rival], label)) rival++;
        if (rival == kept) order[kept++] = label;
    }
    return kept;
}
