/* The random moves of annealing: change how ops are computed and in what order, and take it back. */
#ifndef HOPE_MOVES_H
#define HOPE_MOVES_H

#include "parts.h"

enum { LONGEST_STRETCH = 8 };         /* ops of a chain that one move may change together */
static const double CUTTING = 0.65;   /* of the moves that change how ops are computed, so many cut them */
enum { LINKS = 16 };                  /* from here on in the draws: which way a chain goes on */
enum { NONE = -1 };

/* Fill the draws with numbers of [0, 1) from a xorshift64* generator whose one-word state is advanced in place. */
INLINE void draw(uint64_t *random, double *draws) {
    uint64_t x = *random;
    for (word k = 0; k < DRAWS; k++) {
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        draws[k] = (double)((x * 2685821657736338717ULL) >> 11) / 9007199254740992.0;
    }
    *random = x;
}

/* One of so many, by a draw. */
INLINE word pick(double drawn, word count) { return (word)(drawn * (double)count); }

/* Copy how one op is computed. */
INLINE void copy_mode(const Arrays *a, const word *source, word at, word *target, word to) {
    for (word field = 0; field < a->width; field++) target[to * a->width + field] = source[at * a->width + field];
}

/* Remember how an op is computed before a trial changes it; how many have been changed by now. */
INLINE word remember(const Arrays *a, const State *s, word op, word number, word changes) {
    if (s->touched[op] == number) return changes;
    s->touched[op] = number;
    s->changed[changes] = op;
    copy_mode(a, s->mode, op, s->undo, changes);
    return changes + 1;
}

/* A random op that the op reads from, or that reads from it; NONE where there is none. */
INLINE word neighbour_of(const Arrays *a, word op, double drawn) {
    word near = a->before_at[op + 1] - a->before_at[op], around = near + a->after_at[op + 1] - a->after_at[op];
    word which = pick(drawn, around);
    if (around == 0) return NONE;
    return which < near ? a->before[a->before_at[op] + which] : a->after[a->after_at[op] + which - near];
}

/* A random other processor that supports the op, where there are many often a neighbour's; or the same one. */
INLINE word another(const Arrays *a, const State *s, word op, word neighbour) {
    const double *latency = a->latency + op * a->processors;
    word here = s->mode[op * a->width + PARTS] == 1 ? s->mode[op * a->width + HOME] : NONE;
    if (a->processors > 2 && s->draws[4] < 0.5 && neighbour >= 0) {
        word there = s->mode[neighbour * a->width + HOME];
        if (there != here && latency[there] < INFINITY) return there;
    }
    word count = 0;
    for (word p = 0; p < a->processors; p++) count += p != here && latency[p] < INFINITY;
    word which = pick(s->draws[5], count);
    for (word p = 0; p < a->processors; p++)
        if (p != here && latency[p] < INFINITY && which-- == 0) return p;
    return here;
}

/* Cut an op as another one is, its borders so many tenths further; false where that cannot be. */
INLINE bool cut_like(const Arrays *a, const State *s, word op, word model, word lean) {
    word *m = s->mode, theirs = model * a->width, own = op * a->width;
    const Ways *w = &a->ways;
    word count = m[theirs + PARTS], axis = w->axes[model * AXES + m[theirs + AXIS]], g = NONE;
    if (w->row[op] < 0 || count == 1) return false;
    for (word other = 0; other < AXES; other++)
        if (w->axes[op * AXES + other] == axis) g = other;
    if (g < 0) return false;
    const word *border = w->border + (op * AXES + g) * (TENTHS + 1);
    const double *part_us = w->part_us + (w->row[op] * AXES + g) * (TENTHS + 1) * (TENTHS + 1) * a->processors;
    for (word part = 0; part < count; part++) {
        word begin = part > 0 ? m[theirs + part * FIELDS + TENTH] + lean : 0;
        word end = part + 1 < count ? m[theirs + (part + 1) * FIELDS + TENTH] + lean : TENTHS;
        word home = m[theirs + part * FIELDS + HOME];
        if (!(0 <= begin && begin < end && end <= TENTHS && (part == 0 || begin > 0))) return false;
        if (!(a->latency[op * a->processors + home] < INFINITY) || border[begin] >= border[end]) return false;
        if (!(part_us[(begin * (TENTHS + 1) + end) * a->processors + home] < INFINITY)) return false;
    }
    for (word part = 0; part < count; part++) {
        m[own + part * FIELDS + HOME] = m[theirs + part * FIELDS + HOME];
        m[own + part * FIELDS + TENTH] = m[theirs + part * FIELDS + TENTH] + (part > 0 ? lean : 0);
    }
    m[own + PARTS] = count;
    m[own + AXIS] = g;
    return true;
}

/* Cut an op like the one before it in its chain, like a neighbour or at one of its best; lean, tie or untie it. */
INLINE bool change_cut(const Arrays *a, const State *s, word op, word model, word turn) {
    word *m = s->mode, own = op * a->width, lean = 1 - 2 * pick(s->draws[13], 2), source = op;
    const Ways *w = &a->ways;
    double action = s->draws[8];
    bool made = false;
    if (action >= 0.88) {
        m[own + CHAINED] = 1 - m[own + CHAINED];
        return m[own + PARTS] > 1;
    }
    if (action < 0.63) {
        word options = w->option_at[op + 1] - w->option_at[op];
        if (model >= 0 && (turn > 0 || s->draws[9] < 0.5) && m[model * a->width + PARTS] > 1) {
            source = model;
            lean = 0;
        } else if (turn == 0 && options > 0) {
            copy_mode(a, w->option, w->option_at[op] + pick(s->draws[11], options), m, op);
            made = true;
        } else {
            return false;
        }
    }
    made = cut_like(a, s, op, source, lean) || made;
    if (made && action < 0.63) m[own + CHAINED] = s->draws[14] >= 0.3;
    return made;
}

/* Work out again what a cut op's parts compute; negative, less one, where that has changed and the op is outside the
 * window, where it must stay as it is. */
INLINE word settle_one(const Arrays *a, const State *s, word low, word high, word op, word number, word changes) {
    if (s->mode[op * a->width + PARTS] == 1) return changes;
    word noted = remember(a, s, op, number, changes);
    if (find_regions(a, s, op)) return s->position[op] < low || s->position[op] >= high ? -noted - 1 : noted;
    if (noted > changes) s->touched[op] = 0;
    return changes;
}

/* Work out what parts compute now that some ops have changed; negative, less one, where that is outside the window.
 *
 * What chains add to a part goes backwards, from who reads to what it reads. */
INLINE word settle(const Arrays *a, const State *s, word low, word high, word number, word changes) {
    const word *m = s->mode;
    word last = low, made = changes;
    for (word change = 0; change < made; change++) {
        word op = s->changed[change];
        last = more(last, s->position[op]);
        /* Whether who reads it holds on to its chain is told by all that it reads. */
        for (word k = a->after_at[op]; k < a->after_at[op + 1]; k++) {
            word reader = a->after[k];
            if (m[reader * a->width + PARTS] == 1 || m[reader * a->width + CHAINED] == 0) continue;
            for (word b = a->before_at[reader]; b < a->before_at[reader + 1]; b++) {
                word other = a->before[b];
                last = more(last, s->position[other]);
                if (s->position[other] < low) changes = settle_one(a, s, low, high, other, number, changes);
                if (changes < 0) return changes;
            }
        }
    }
    for (word at = last; at >= low; at--) {
        word op = s->sequence[at];
        changes = settle_one(a, s, low, high, op, number, changes);
        if (changes < 0) return changes;
        if (s->touched[op] != number) continue;
        /* It has changed: so may have what it reads from before the window. */
        for (word b = a->before_at[op]; b < a->before_at[op + 1]; b++) {
            word other = a->before[b];
            if (s->position[other] < low) changes = settle_one(a, s, low, high, other, number, changes);
            if (changes < 0) return changes;
        }
    }
    return changes;
}

/* Move the op at one position to another; those between move up by one. */
INLINE void shift(const State *s, word source, word target) {
    word op = s->sequence[source], step = target > source ? 1 : -1;
    for (word at = source; at != target; at += step) {
        s->sequence[at] = s->sequence[at + step];
        s->position[s->sequence[at]] = at;
    }
    s->sequence[target] = op;
    s->position[op] = target;
}

/* Whether any parts of two ops take the same resource. */
INLINE bool meet(const Arrays *a, const State *s, word op, word other) {
    const word *m = s->mode, *mine = m + op * a->width, *theirs = m + other * a->width;
    for (word part = 0; part < mine[PARTS]; part++)
        for (word k = 0; k < theirs[PARTS]; k++)
            if (a->rivals[mine[part * FIELDS + HOME] * a->processors + theirs[k * FIELDS + HOME]]) return true;
    return false;
}

/* A position of the window for an op, behind all it reads and before all that read it; its own if it tells nothing.
 *
 * Passing only ops that run beside it changes no time. */
INLINE word slot_for(const Arrays *a, const State *s, word op, word low, word high) {
    word position = s->position[op], floor = low, ceiling = high - 1;
    for (word k = a->before_at[op]; k < a->before_at[op + 1]; k++)
        floor = more(floor, s->position[a->before[k]] + 1);
    for (word k = a->after_at[op]; k < a->after_at[op + 1]; k++)
        ceiling = less(ceiling, s->position[a->after[k]] - 1);
    word target = floor + pick(s->draws[6], ceiling - floor + 1);
    for (word at = less(position, target); at <= more(position, target); at++)
        if (at != position && meet(a, s, op, s->sequence[at])) return target;
    return position;
}

/* What a move changes: so many ops (noted in `undo`; negative: it cannot be made, less one), and from which position to
 * which one it moves an op (NONE: it does not). */
typedef struct {
    word changes, source, target;
} Change;

/* Make one random change inside the window: to an op (30 %), a stretch of a chain (20 %), the order (35 %), both.
 *
 * To change is to put it whole on another processor, or to cut it. Where ops may be cut stretches are more frequent. */
INLINE Change propose(const Arrays *a, const State *s, word low, word high, word number) {
    word *m = s->mode, position = low + pick(s->draws[0], high - low), op = s->sequence[position], changes = 0;
    double kind = s->draws[1];
    if (kind < 0.50 || kind >= 0.85) {
        word wanted = 1;
        if ((0.30 <= kind && kind < 0.50) || (a->cuttable && s->draws[15] < 0.5))
            wanted = 2 + pick(s->draws[2], LONGEST_STRETCH - 1);
        word neighbour = neighbour_of(a, op, s->draws[10]), home = another(a, s, op, neighbour), link = op, turn = 0;
        bool cutting = a->cuttable && s->draws[7] < CUTTING;
        while (link >= 0 && turn < wanted && (cutting || home >= 0)) {
            word known = changes, own = link * a->width;
            bool made;
            changes = remember(a, s, link, number, changes);
            if (cutting) {
                made = change_cut(a, s, link, turn == 0 ? neighbour : op, turn);
            } else {
                made = (m[own + PARTS] > 1 || m[own + HOME] != home) &&
                       a->latency[link * a->processors + home] < INFINITY;
                if (made) {
                    m[own + HOME] = home;
                    m[own + PARTS] = 1;
                }
            }
            if (made || cutting)
                turn++;
            else if (turn == 0)
                turn = wanted;
            if (!made) {
                s->touched[link] = 0;
                changes = known;
            }
            /* On along the chain, to one of those that read what the op makes. */
            word successors = a->after_at[link + 1] - a->after_at[link];
            if (successors > 0)
                link = a->after[a->after_at[link] + pick(s->draws[LINKS + turn % (DRAWS - LINKS)], successors)];
            if (successors == 0 || s->position[link] >= high) link = NONE;
        }
        if (a->cuttable) changes = settle(a, s, low, high, number, changes);
    }
    if (kind >= 0.50 && changes >= 0) {
        word target = slot_for(a, s, op, low, high);
        if (target != position) {
            shift(s, position, target);
            return (Change){changes, position, target};
        }
    }
    return (Change){changes, NONE, NONE};
}

/* Undo what `propose` did. */
INLINE void take_back(const Arrays *a, const State *s, Change change) {
    if (change.source >= 0) shift(s, change.target, change.source);
    for (word k = 0; k < change.changes; k++) copy_mode(a, s->undo, k, s->mode, s->changed[k]);
}

#endif
