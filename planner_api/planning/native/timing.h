/* The simulator's arithmetic, to the last bit (judge/simulator.py states the rules).
 *
 * `trial` times any stretch of a sequence: a whole plan, or what one move of the annealing changes. Where ops are cut,
 * slices and joins, which problem/cuts.py makes ops of their own, are counted with the part that reads them: there it
 * is a guide, and the simulator times what comes of it. */
#ifndef HOPE_TIMING_H
#define HOPE_TIMING_H

#include "parts.h"

enum { ALL = 0 };                      /* key of what stands of a tensor somewhere: all of it; */
static const word PARTLY = 1LL << 60; /* what no part reads again: some of an output on the host */

/* From when on a resource, whose entries stand from `first` to `last`, has room for one more share. */
INLINE double fits(const double *line, word slots, word first, word last, double share) {
    double taken = 0.0;
    for (word k = first; k < last; k++) {
        double other = line[slots + k];
        if (other == 0.0) return 0.0;
        if (taken + other + share > FULL) return line[k];
        taken += other;
    }
    return 0.0;
}

/* Let a resource, whose entries stand from `first` to `last`, count one more part. */
INLINE void count_in(double *line, word slots, word first, word last, double end, double share) {
    word at = first;
    while (at < last && line[slots + at] > 0.0 && line[at] >= end) at++;
    for (word k = last - 1; k > at; k--) {
        line[k] = line[k - 1];
        line[slots + k] = line[slots + k - 1];
    }
    if (at < last) {
        line[at] = end;
        line[slots + at] = share;
    }
}

/* The key of a part, and of the slice of it that is read; others have others, but for chance. */
INLINE word key_of(word begins, word ends, word low, word high) {
    const uint64_t mixing = 0x9E3779B97F4A7C15ULL;
    uint64_t mixed = (((uint64_t)begins * mixing + (uint64_t)ends) * mixing + (uint64_t)low) * mixing + (uint64_t)high;
    return 1 + (word)(mixed % ((uint64_t)PARTLY - 1));
}

typedef struct {
    word key;
    double when;
} Found;

/* What of a tensor is brought to a cell by those before in the trial, and when; key -1: nothing. */
INLINE Found found(const State *s, word cell, word first, word number) {
    if (s->holder[cell] < first) return (Found){s->key[cell], s->when[cell]};
    if (s->mark[cell] == number) return (Found){s->new_key[cell], s->new_when[cell]};
    return (Found){-1, 0.0};
}

/* Note that a trial brings something to a cell at a position (cell -1: it stands there anyway), who pays how much. */
INLINE void note(const State *s, word noted, word cell, word at, double paid) {
    s->log[2 * noted] = cell;
    s->log[2 * noted + 1] = at;
    s->paid[noted] = paid;
}

INLINE void copy_front(const Arrays *a, const double *from, double *to) {
    for (word k = 0; k < a->front; k++) to[k] = from[k];
}

/* Make the last trial the plan. */
INLINE void accept(const Arrays *a, const State *s, word first, word until, word high) {
    word cells = a->most * a->columns;
    for (word at = first; at < until; at++) {
        word op = s->sequence[at];
        for (word part = 0; part < s->mode[op * a->width + PARTS]; part++)
            s->spent[op * a->most + part] = s->new_spent[at * a->most + part];
        for (word r = a->reads_at[op]; r < a->reads_at[op + 1]; r++)
            for (word cell = a->reads[r] * cells; cell < (a->reads[r] + 1) * cells; cell++)
                if (first <= s->holder[cell] && s->holder[cell] < until) s->holder[cell] = a->ops;
        if (at <= high) copy_front(a, s->new_front + at * a->front, s->front_at + at * a->front);
    }
    if (until <= high) copy_front(a, s->new_front + until * a->front, s->front_at + until * a->front);
    for (word f = 0; f < s->counts[NOTED]; f++) {
        word cell = s->log[2 * f];
        if (cell >= 0) {
            s->holder[cell] = s->log[2 * f + 1];
            s->key[cell] = s->new_key[cell];
            s->when[cell] = s->new_when[cell];
        }
    }
}

/* Forget the last trial; modes and order must still be those that were tried. */
INLINE void reject(const Arrays *a, const State *s, word first) {
    for (word at = first; at < s->counts[REACHED]; at++)
        for (word part = 0; part < a->most; part++)
            s->finish[s->sequence[at] * a->most + part] = s->old_finish[at * a->most + part];
}

/* Write the places from `target` back to `source` into s->way; how many channels lie between. */
INLINE word way_back(const Arrays *a, const State *s, word source, word target) {
    word hops = 0;
    for (word stop = target; stop != source; stop = a->hop[source * a->places + stop]) s->way[hops++] = stop;
    s->way[hops] = source;
    return hops;
}

/* What moving some of a tensor over a channel takes. */
INLINE double moving_us(const Arrays *a, word tensor, word from, word to, bool all, double size) {
    word cell = (tensor * a->places + from) * a->places + to;
    return all ? a->cost[cell] : a->ways.fixed[cell] + a->ways.slope[cell] * size;
}

/* When a move over a channel ends that could begin at `since`; a queue on it is busy until then. */
INLINE double moved(const Arrays *a, const State *s, word from, word to, double since, double cost) {
    word queue = a->busy[from * a->places + to];
    if (queue < 0) return since + cost;
    double *free = s->front + 2 * a->slots + queue;
    return *free = larger(since, *free) + cost;
}

/* The part of what an op leaves of its memory's resources that is taken at a time, from 0 to 1. */
INLINE double pressure(const Arrays *a, const State *s, word here, double begin, double share) {
    double pressing = 0.0;
    for (word u = a->near_at[here]; u < a->near_at[here + 1]; u++) {
        double busy = 0.0;
        for (word k = a->near[u] * a->length; k < (a->near[u] + 1) * a->length; k++) {
            if (s->front[k] <= begin) break;
            busy += a->length == 1 ? 1.0 : s->front[a->slots + k];
        }
        pressing += smaller(busy, 1.0);
    }
    double room = (double)(a->near_at[here + 1] - a->near_at[here]);
    room -= share * (double)(a->uses_at[here + 1] - a->uses_at[here]);
    return room > 1e-9 ? smaller(pressing / room, 1.0) : 0.0;
}

/* Write when an op begins and when it is done. Parts begin at different times, and in the order of starts nothing may
 * overtake another. */
INLINE void write_times(const Arrays *a, const State *s, word op, word count, double opened, double done) {
    s->done[op] = done;
    if (a->cuttable) {
        for (word b = a->before_at[op]; b < a->before_at[op + 1]; b++) opened = larger(opened, s->start[a->before[b]]);
        for (word turn = 0; turn < 2; turn++)
            for (word part = 0; part < count; part++) {
                word here = s->mode[op * a->width + part * FIELDS + HOME];
                for (word u = a->uses_at[here]; u < a->uses_at[here + 1]; u++) {
                    opened = larger(opened, s->turns[a->uses[u]]);
                    if (turn == 1) s->turns[a->uses[u]] = opened;
                }
            }
    }
    s->start[op] = opened;
}

/* Time positions `start` to `until`: a new trial from `first` on, or the rest of one that got to `start`.
 *
 * What is found stands in the scratch space (and the parts' finish) until `accept` or `reject`. Where nothing limits
 * it, the ops' start and done are written too. Up to position `high` the state before each position is noted. `number`
 * is larger than that of any trial before.
 *
 * Returns the largest done - due up to `until`; INFINITY when the end must lie beyond `limit`, or a part cannot be. */
INLINE double trial(const Arrays *a, const State *s, word first, word start, word until, word high, double limit,
                    word number) {
    const word *m = s->mode;
    const Ways *w = &a->ways;
    double *front = s->front;
    word slots = a->slots, length = a->length, places = a->places, last = a->front - 1;
    if (start == first) {
        copy_front(a, s->front_at + first * a->front, front);
        s->counts[NOTED] = 0;
        s->counts[RETIMED] = 0;
        s->counts[REACHED] = first;
    }
    word noted = s->counts[NOTED];
    for (word at = start; at < until; at++) {
        if (at <= high) copy_front(a, front, s->new_front + at * a->front);
        word op = s->sequence[at], own = op * a->width, count = m[own + PARTS];
        double opened = INFINITY, finished = -INFINITY;
        for (word part = 0; part < a->most; part++)
            s->old_finish[at * a->most + part] = s->finish[op * a->most + part];
        s->counts[REACHED] = at + 1;
        for (word part = 0; part < count; part++) {
            word mine = own + part * FIELDS, here = m[mine + HOME], target = a->place[here], fetched = noted;
            double begin = 0.0, copying = 0.0;
            bool launched = false;
            for (word r = a->reads_at[op]; r < a->reads_at[op + 1]; r++) {
                word tensor = a->reads[r], maker = a->producer[tensor], theirs = maker * a->width, pieces = 1;
                Need need = {WHOLE, 0, 0};
                if (maker >= 0) pieces = m[theirs + PARTS];
                if (count > 1) {
                    need = needed(&w->needs, m, own, part, r);
                    if (need.axis == NEVER) return INFINITY;
                }
                double copied = 0.0;
                word taken = 0, along = need.axis;
                for (word k = 0; k < pieces; k++) {
                    double size = 1.0;
                    word key = ALL, slot = k, begins = 0, ends = 0, low = 0, high = 0;
                    if (pieces > 1) {
                        word cut = maker * AXES + m[theirs + AXIS], one = theirs + k * FIELDS;
                        along = w->axes[cut];
                        Span span = piece(m, theirs, along, k, part, need);
                        if (span.begins >= span.ends) continue;
                        taken++;
                        size = (double)(span.ends - span.begins) / (double)w->extent[cut];
                        begins = span.begins;
                        ends = span.ends;
                        if (span.begins != m[one + LOW] || span.ends != m[one + HIGH]) copied += size;
                    }
                    if (need.axis >= 0 && (pieces == 1 || along != need.axis)) {
                        size *= (double)(need.high - need.low) / (double)w->needs.span[r * AXES + m[own + AXIS]];
                        copied += size;
                        low = need.low;
                        high = need.high;
                        if (pieces == 1) slot = 1; /* beside all of it a place keeps the slice that it fetched first */
                    }
                    if (pieces > 1 || high > 0) key = key_of(begins, ends, low, high);
                    word source = a->host;
                    double exists = a->release[op];
                    if (maker >= 0) {
                        word home = m[theirs + k * FIELDS + HOME];
                        exists = s->finish[maker * a->most + k];
                        if (home == here) {
                            begin = larger(begin, exists);
                            continue;
                        }
                        source = a->place[home];
                        exists += a->lag[home];
                    }
                    begin = larger(begin, exists);
                    word base = (tensor * a->most + slot) * a->columns;
                    if (a->launches) { /* first the processor takes it in, then its place holds it */
                        word cell = base + places + here;
                        if (found(s, cell, first, number).key != key) {
                            launched = true;
                            note(s, noted++, cell, at, 0.0);
                            s->mark[cell] = number;
                            s->new_key[cell] = key;
                        }
                    }
                    if (source == target) continue;
                    Found there = found(s, base + target, first, number);
                    if (there.key != key && slot != k) {
                        Found whole = found(s, base + target - a->columns, first, number);
                        if (whole.key == ALL) there = (Found){key, whole.when};
                    }
                    if (there.key == key) {
                        if (a->waits) begin = larger(begin, there.when);
                        continue;
                    }
                    /* Back along the way to where it stands, then forth over each channel. */
                    double since = exists;
                    word hops = way_back(a, s, source, target);
                    for (word step = 1; step < hops; step++) {
                        Found stands = found(s, base + s->way[step], first, number);
                        if (stands.key == key) {
                            since = stands.when;
                            hops = step;
                        }
                    }
                    word unpaid = 0; /* channels behind the last queue, which the reader pays for */
                    while (unpaid < hops && a->busy[s->way[unpaid + 1] * places + s->way[unpaid]] < 0) unpaid++;
                    for (word step = hops - 1; step >= 0; step--) {
                        word from = s->way[step + 1], to = s->way[step];
                        bool fresh = found(s, base + to, first, number).key < 0;
                        double cost = moving_us(a, tensor, from, to, key == ALL, size);
                        note(s, noted, fresh ? base + to : -1, at, cost);
                        if (fresh) {
                            s->mark[base + to] = number;
                            s->new_key[base + to] = key;
                        }
                        if (step >= unpaid) {
                            since = moved(a, s, from, to, since, cost);
                            s->paid[noted] = -1.0;
                            if (fresh) s->new_when[base + to] = since;
                        }
                        noted++;
                    }
                    begin = larger(begin, since);
                }
                if (taken > 1 && copied == 0.0) copied = 1.0;
                if (copied > 0.0) copying += w->glue[tensor * RANK + along] * copied;
            }
            double share = a->share[op * a->processors + here];
            for (word u = a->uses_at[here]; u < a->uses_at[here + 1]; u++) {
                word line = a->uses[u] * length;
                begin = larger(begin, length == 1 ? front[line] : fits(front, slots, line, line + length, share));
            }
            double now = begin;
            for (word f = fetched; f < noted; f++)
                if (s->paid[f] >= 0.0) {
                    now += s->paid[f];
                    if (s->log[2 * f] >= 0) s->new_when[s->log[2 * f]] = now;
                }
            if (launched) now += a->launch[here];
            double us = a->latency[op * a->processors + here];
            if (count > 1) {
                word g = op * AXES + m[own + AXIS], d = w->row[op] * AXES + m[own + AXIS], tenth = m[mine + TENTH];
                word stop = part + 1 < count ? m[mine + FIELDS + TENTH] : TENTHS;
                const word *border = w->border + g * (TENTHS + 1);
                double beyond = (double)(m[mine + HIGH] - m[mine + LOW] - border[stop] + border[tenth]);
                us = w->part_us[((d * (TENTHS + 1) + tenth) * (TENTHS + 1) + stop) * a->processors + here] +
                     w->more_us[d * a->processors + here] * beyond + copying;
            }
            us *= a->vary[op * a->processors + here];
            if (a->slow[here] > 0.0) us *= 1.0 + a->slow[here] * pressure(a, s, here, begin, share);
            now += us;
            s->new_spent[at * a->most + part] = now - begin;
            s->finish[op * a->most + part] = now;
            double done = now + a->export[op * a->processors + here];
            if (a->queued && target != a->host && a->carried[target * places + a->host]) {
                word hops = way_back(a, s, target, a->host);
                double size = 1.0;
                if (count > 1)
                    size = (double)(m[mine + HIGH] - m[mine + LOW]) / (double)w->extent[op * AXES + m[own + AXIS]];
                for (word t = a->writes_at[op]; t < a->writes_at[op + 1]; t++) {
                    word tensor = a->writes[t];
                    if (!a->is_output[tensor]) continue;
                    double since = now;
                    for (word step = hops - 1; step >= 0; step--) {
                        word from = s->way[step + 1], to = s->way[step];
                        word cell = (tensor * a->most + part) * a->columns + to;
                        since = moved(a, s, from, to, since, moving_us(a, tensor, from, to, count == 1, size));
                        note(s, noted++, cell, at, 0.0);
                        s->mark[cell] = number;
                        s->new_key[cell] = count == 1 ? ALL : PARTLY;
                        s->new_when[cell] = since;
                    }
                    done = larger(done, since);
                }
            }
            if (!(now + a->tail[op] <= limit)) return INFINITY;
            for (word u = a->uses_at[here]; u < a->uses_at[here + 1]; u++) {
                word line = a->uses[u] * length;
                if (length == 1) {
                    front[line] = larger(front[line], now);
                    front[slots + line] = 1.0;
                } else {
                    count_in(front, slots, line, line + length, now, share);
                }
            }
            front[last] = larger(front[last], done - a->due[op]);
            opened = smaller(opened, begin);
            finished = larger(finished, done);
            if (at >= high && s->new_spent[at * a->most + part] != s->spent[op * a->most + part])
                s->counts[RETIMED] = 1;
        }
        if (limit == INFINITY) write_times(a, s, op, count, opened, finished);
    }
    if (until <= high) copy_front(a, front, s->new_front + until * a->front);
    s->counts[NOTED] = noted;
    return front[last];
}

#endif
