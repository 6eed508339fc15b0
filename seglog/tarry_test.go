package seglog

import "testing"

// TestTarryingInVainBecomesRare: a consumer that is mostly idle pauses ever more
// seldom before it parks, one that finds something by it always does.
func TestTarryingInVainBecomesRare(t *testing.T) {
	var c tarry
	tried := 0
	for range 1000 {
		if c.begin() {
			tried++
			c.end(false)
		}
	}
	if tried < 10 || tried > 30 {
		t.Errorf("%d of 1000 waits paused in vain", tried)
	}
	for !c.begin() {
	}
	c.end(true)
	for i := range 100 {
		if !c.begin() {
			t.Fatalf("wait %d after one that found something did not pause", i)
		}
		c.end(true)
	}
	c.end(false)
	if c.begin() || !c.begin() {
		t.Error("after one in vain the wait after the next pauses again")
	}
	if alone := (tarry{useless: true}); alone.begin() {
		t.Error("with one processor nothing can come meanwhile")
	}
}

// TestPausesEndWithWhatComes: and only with that.
func TestPausesEndWithWhatComes(t *testing.T) {
	for name, come := range map[string]func(*Waker){
		"an event": func(w *Waker) { w.Notify(1) }, "a ring": (*Waker).Ring, "the end": (*Waker).Close,
	} {
		w := NewWaker(2)
		if w.comesSoon() {
			t.Error(name + ": nothing has come")
		}
		come(w)
		if !w.comesSoon() {
			t.Error(name + " has come")
		}
	}
}
