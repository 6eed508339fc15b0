package stream

import (
	"testing"

	"github.com/penstock/penstock"
	"pgregory.net/rapid"
)

func drawView(t *rapid.T) progressView {
	tok := rapid.Custom(func(t *rapid.T) penstock.Token {
		return penstock.Token{Lo: rapid.Uint64Range(0, 20).Draw(t, "lo")}
	})
	sub := rapid.Custom(func(t *rapid.T) subView {
		return subView{
			registered: rapid.Float64().Draw(t, "registered") < 0.95,
			unresolved: rapid.Float64().Draw(t, "unresolved") < 0.05,
			caughtUp:   rapid.Bool().Draw(t, "caught up"),
			hasSafe:    rapid.Float64().Draw(t, "has") < 0.95,
			safe:       tok.Draw(t, "safe"),
		}
	})
	v := progressView{
		uncertain: rapid.Float64().Draw(t, "uncertain") < 0.05,
		read:      tok.Draw(t, "read"),
		hasRead:   rapid.Float64().Draw(t, "has read") < 0.9,
		quiet:     rapid.Bool().Draw(t, "quiet"),
	}
	for range rapid.IntRange(0, 4).Draw(t, "streams") {
		v.streams = append(v.streams, streamView{
			registering: rapid.Float64().Draw(t, "registering") < 0.05,
			subs:        rapid.SliceOfN(sub, 0, 4).Draw(t, "subs"),
		})
	}
	return v
}

// Progress never passes a subscription, is as far as they allow, and says
// nothing when a position is not known (OR-133 to OR-138).
func TestProgressIsTheMinimum(t *testing.T) {
	pending := progressView{quiet: true, hasRead: true, streams: []streamView{{registering: true}}}
	if p := computeProgress(pending); p.certain {
		t.Fatalf("progress %+v is certain while a stream is being registered", p)
	}
	unresolved := progressView{quiet: true, hasRead: true, streams: []streamView{{subs: []subView{{registered: true, unresolved: true, caughtUp: true}}}}}
	if p := computeProgress(unresolved); p.certain {
		t.Fatalf("progress %+v is certain while a subscription has no known position", p)
	}
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		p := computeProgress(v)
		known, subs := !v.uncertain, 0
		reached := false
		for _, s := range v.streams {
			known = known && !s.registering
			for _, sub := range s.subs {
				subs++
				ok := sub.registered && !sub.unresolved && (sub.caughtUp || sub.hasSafe)
				known = known && ok
				if ok && !sub.caughtUp && p.certain {
					if p.at.Compare(sub.safe) > 0 {
						t.Fatalf("progress %v passes %v", p.at, sub.safe)
					}
					reached = reached || p.at == sub.safe
				}
			}
		}
		bound := v.quiet || subs > 0
		if bound && !v.hasRead {
			known = false
		}
		if p.certain != known {
			t.Fatalf("certain %v, want %v", p.certain, known)
		}
		if !known {
			return
		}
		if p.bound != bound {
			t.Fatalf("bound %v, want %v", p.bound, bound)
		}
		if p.at.Compare(v.read) > 0 {
			t.Fatalf("progress %v passes what was read, %v", p.at, v.read)
		}
		if !reached && p.at != v.read {
			t.Fatalf("progress %v is held by nobody", p.at)
		}
	})
}

// One more subscription never moves progress forward.
func TestMoreSubscriptionsNeverRaiseProgress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		before := computeProgress(v)
		more := drawView(t)
		v.streams = append(v.streams, more.streams...)
		after := computeProgress(v)
		if after.certain && (!before.certain || after.at.Compare(before.at) > 0) {
			t.Fatalf("from %+v to %+v", before, after)
		}
	})
}
