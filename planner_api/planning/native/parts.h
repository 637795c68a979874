/* What parts of cut ops compute and read: the rules of hope_schema/cutting on intervals. */
#ifndef HOPE_PARTS_H
#define HOPE_PARTS_H

#include "arrays.h"

typedef struct {
    word axis, low, high;
} Need;

/* What a part of the op whose mode begins at `own` reads: the axis, or WHOLE or NEVER, start and stop. */
INLINE Need needed(const Needs *w, const word *m, word own, word part, word read) {
    if (m[own + PARTS] == 1) return (Need){WHOLE, 0, 0};
    word cell = read * AXES + m[own + AXIS];
    if (w->axis[cell] < 0) return (Need){w->axis[cell], 0, 0};
    word low = m[own + part * FIELDS + LOW], high = m[own + part * FIELDS + HIGH];
    if (w->at[cell] >= 0) {
        low = w->low[w->at[cell] + low];
        high = w->high[w->at[cell] + high];
    }
    if (low >= high) return (Need){NEVER, 0, 0};
    if (low == 0 && high == w->span[cell]) return (Need){WHOLE, 0, 0};
    return (Need){w->axis[cell], low, high};
}

typedef struct {
    word begins, ends;
} Span;

/* What part `part` of a reader takes of part `k` of a cut op, whose mode begins at `own` and which is cut `along` an
 * axis; the reader's part reads `need`. */
INLINE Span piece(const word *m, word own, word along, word k, word part, Need need) {
    word count = m[own + PARTS], mine = own + part * FIELDS, one = own + k * FIELDS;
    word before = k > 0 ? m[one - FIELDS + HIGH] : 0;
    if (need.axis != along) return (Span){more(m[one + LOW], before), m[one + HIGH]};
    word holder = part < count && m[mine + LOW] <= need.low && need.high <= m[mine + HIGH] ? part : -1;
    for (word other = 0; holder < 0 && other < count; other++)
        if (m[own + other * FIELDS + LOW] <= need.low && need.high <= m[own + other * FIELDS + HIGH]) holder = other;
    if (holder >= 0) return k == holder ? (Span){need.low, need.high} : (Span){0, 0};
    word first = more(need.low, m[one + LOW]), last = less(need.high, m[one + HIGH]);
    if (k != part) {
        first = more(first, before);
        if (k < part && part < count) last = less(last, m[mine + LOW]);
    }
    return (Span){first, last};
}

/* Whether a chained op reads nothing but the same parts of what it reads; else it is not chained. */
INLINE bool holds_on(const Arrays *a, const State *s, word op) {
    const word *m = s->mode;
    word own = op * a->width;
    if (m[own + PARTS] == 1 || m[own + CHAINED] == 0 || a->reads_at[op] == a->reads_at[op + 1]) return false;
    for (word read = a->reads_at[op]; read < a->reads_at[op + 1]; read++) {
        word maker = a->producer[a->reads[read]], axis = a->ways.needs.axis[read * AXES + m[own + AXIS]];
        if (maker < 0 || axis < 0 || m[maker * a->width + PARTS] != m[own + PARTS] ||
            a->ways.axes[maker * AXES + m[maker * a->width + AXIS]] != axis)
            return false;
    }
    return true;
}

/* What each part of a cut op computes, with what chains add to it; whether that has changed. */
INLINE bool find_regions(const Arrays *a, const State *s, word op) {
    word *m = s->mode;
    const Ways *w = &a->ways;
    word own = op * a->width, count = m[own + PARTS], cell = op * AXES + m[own + AXIS];
    const word *border = w->border + cell * (TENTHS + 1);
    bool changed = false;
    for (word part = 0; part < count; part++) {
        word mine = own + part * FIELDS;
        word last = part + 1 < count ? m[mine + FIELDS + TENTH] : TENTHS;
        word start = border[m[mine + TENTH]], stop = border[last];
        for (word k = a->after_at[op]; k < a->after_at[op + 1]; k++) {
            word reader = a->after[k];
            if (!holds_on(a, s, reader)) continue;
            for (word read = a->reads_at[reader]; read < a->reads_at[reader + 1]; read++) {
                if (a->producer[a->reads[read]] != op) continue;
                Need need = needed(&w->needs, m, reader * a->width, part, read);
                if (need.axis >= 0) {
                    start = less(start, need.low);
                    stop = more(stop, need.high);
                } else if (need.axis == WHOLE) {
                    start = 0;
                    stop = w->extent[cell];
                }
            }
        }
        changed = changed || start != m[mine + LOW] || stop != m[mine + HIGH];
        m[mine + LOW] = start;
        m[mine + HIGH] = stop;
    }
    return changed;
}

/* Whether a part of an op takes anything of part `k` of what makes the tensor of a read. */
INLINE bool takes_of(const Arrays *a, const State *s, word op, word part, word read, word k) {
    word theirs = a->producer[a->reads[read]] * a->width;
    if (s->mode[theirs + PARTS] == 1) return true;
    Need need = needed(&a->ways.needs, s->mode, op * a->width, part, read);
    word along = a->ways.axes[a->producer[a->reads[read]] * AXES + s->mode[theirs + AXIS]];
    Span span = piece(s->mode, theirs, along, k, part, need);
    return span.begins < span.ends;
}

#endif
