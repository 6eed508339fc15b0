package segfile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// TestLostTopicFileWithoutSegmentsIsNoNewTopic: a topic of which everything was
// consumed began anew at offset 0, with positions that were of another topic.
func TestLostTopicFileWithoutSegmentsIsNoNewTopic(t *testing.T) {
	for name, rest := range map[string]struct{ group, numbered, lost bool }{
		"state":     {},
		"positions": {group: true, lost: true},
		"producers": {numbered: true, lost: true},
		"all":       {group: true, numbered: true},
	} {
		t.Run(name, func(t *testing.T) {
			m, c := consumed(t, rest.group, rest.numbered)
			must(t, m.Remove(topicFile))
			if rest.lost {
				must(t, m.Remove(stateFile))
			}
			_, err := Open(c)
			if wantErr(t, err, penstock.ErrCorrupt); !strings.Contains(err.Error(), topicName) || !strings.Contains(err.Error(), "p00000 holds") {
				t.Errorf("the error does not say what is missing and what is there: %v", err)
			}
			if all, err := Topics(m, "data"); err != nil || !slices.Equal(all, []string{"orders"}) {
				t.Errorf("topics %q, %v", all, err)
			}
			plan := rebuildOf(c, true)
			if _, err := Inspect(plan.InspectConfig); !errors.Is(err, penstock.ErrCorrupt) {
				t.Errorf("a look at it: %v", err)
			}
			_, err = RebuildTopic(plan) // the codec stood in segments
			wantErr(t, err, penstock.ErrInvalid)
			plan.Codec, plan.Router = c.Codec, c.Router
			r, err := RebuildTopic(plan)
			must(t, err)
			if r.Partitions != 1 || len(r.Assumed) > 0 {
				t.Errorf("%+v", r)
			}
			must(t, goesOn(c, rest.group))
		})
	}
}

// TestUnreadableStateIsNotTakenForANewTopic: what it would say is not known.
func TestUnreadableStateIsNotTakenForANewTopic(t *testing.T) {
	m, c := consumed(t, false, false)
	must(t, m.Remove(topicFile))
	eio := errors.New("input/output error")
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpRead && op.Name == stateFile {
			return vfs.Fault{Err: eio}
		}
		return vfs.Fault{}
	})
	_, err := Open(c)
	wantErr(t, err, eio)
	if all, err := Topics(m, "data"); err != nil || !slices.Equal(all, []string{"orders"}) {
		t.Errorf("topics %q, %v", all, err)
	}
	m.SetFault(nil)
	overwrite(t, m, stateFile, make([]byte, 2*slotSize), 0)
	_, err = Open(c)
	wantErr(t, err, penstock.ErrCorrupt)
}

// TestTopicThatWasNeverFinishedIsMadeAgain: at every operation of its making, and
// one that was finished and never used loses nothing either.
func TestTopicThatWasNeverFinishedIsMadeAgain(t *testing.T) {
	for n := 1; ; n++ {
		m := vfs.NewMem()
		c := small(m, "data")
		c.Partitions = 2
		count, made := 0, false
		m.SetFault(func(op vfs.Op) vfs.Fault {
			if made = made || op.Kind == vfs.OpRename && strings.HasSuffix(op.Name, topicName+".tmp"); made {
				return vfs.Fault{}
			}
			if count++; count >= n { // the process has ended
				return vfs.Fault{Err: errors.New("gone")}
			}
			return vfs.Fault{}
		})
		l, err := Open(c)
		if err == nil {
			must(t, l.Close())
		}
		m.SetFault(nil)
		if all, _ := Topics(m, "data"); err != nil && len(all) > 0 {
			t.Fatalf("operation %d: %q counts as a topic", n, all)
		}
		if err == nil {
			must(t, m.Remove(topicFile))
		}
		l, lerr := Open(c)
		if lerr != nil {
			t.Fatalf("operation %d, %v: %v", n, err, lerr)
		}
		must(t, l.Close())
		if err == nil {
			if n < 10 {
				t.Fatal(fmt.Sprint(n, " operations are too few to mean anything"))
			}
			return
		}
	}
}
