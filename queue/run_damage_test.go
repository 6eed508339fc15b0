package queue_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// Damage ends Run loudly, after what lies before it was delivered and
// committed; nothing is skipped (BQ-89).
func TestRunEndsAtDamageAfterWhatLiesBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := queue.Config[string]{Name: "topic", Dir: t.TempDir(), Codec: penstock.String()}
		topic, err := queue.Open(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range []string{"first", "second", "third"} {
			produce(t, topic, v)
		}
		group(t, topic, "g", queue.GroupConfig{})
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
		damage(t, c.Dir, "second")
		topic, err = queue.Open(c)
		if err != nil {
			t.Fatal(err)
		}
		defer topic.Close()
		g := group(t, topic, "g", queue.GroupConfig{})
		var got []string
		err = g.Run(t.Context(), func(_ context.Context, b penstock.Batch[string]) error {
			got = append(got, b.Values()...)
			return nil
		})
		wantErr(t, err, penstock.ErrCorrupt)
		if len(got) != 1 || got[0] != "first" {
			t.Errorf("delivered %q before the damage, want the first alone", got)
		}
		wantCommitted(t, g, 1)
	})
}

// damage changes one byte of the given text where it stands in a segment.
func damage(t *testing.T, dir, text string) {
	t.Helper()
	found := false
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".seg" {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if at := bytes.Index(b, []byte(text)); at >= 0 {
			found = true
			b[at] ^= 1
			return os.WriteFile(path, b, 0o600)
		}
		return nil
	})
	if err != nil || !found {
		t.Fatalf("damage %q: found %v, %v", text, found, err)
	}
}

// unreadable is a codec that cannot read one value.
type unreadable struct{ penstock.Codec[string] }

func (f unreadable) Decode(src []byte, v *string) error {
	if string(src) == "second" {
		return errUnreadable
	}
	return f.Codec.Decode(src, v)
}

var errUnreadable = errors.New("schema is unknown")

func TestRunEndsAtAnEventThatCannotBeDecoded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := open(t, storage{"file"}, queue.Config[string]{Codec: unreadable{penstock.String()}})
		g := group(t, topic, "g", queue.GroupConfig{})
		produce(t, topic, "first", "second", "third")
		var got []string
		err := g.Run(t.Context(), func(_ context.Context, b penstock.Batch[string]) error {
			got = append(got, b.Values()...)
			return nil
		})
		wantErr(t, err, errUnreadable)
		if len(got) != 1 || got[0] != "first" {
			t.Errorf("delivered %q, want the first alone", got)
		}
		wantCommitted(t, g, 1)
	})
}
