package queue_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// endsInDamage opens a topic whose last event was cut out of its file: the open
// finds that, and what is readable ends before it.
func endsInDamage(t *testing.T, gc queue.GroupConfig) *queue.Group[string] {
	t.Helper()
	c := queue.Config[string]{Name: "topic", Dir: t.TempDir(), Codec: penstock.String()}
	topic, err := queue.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"first", "second", "third"} {
		produce(t, topic, v)
	}
	group(t, topic, "g", gc)
	if err := topic.Close(); err != nil {
		t.Fatal(err)
	}
	segments, err := filepath.Glob(filepath.Join(c.Dir, "topic", "p00000", "*.seg"))
	if err != nil || len(segments) != 1 {
		t.Fatalf("segments %q, %v", segments, err)
	}
	b, err := os.ReadFile(segments[0])
	at := bytes.Index(b, []byte("third"))
	if err != nil || at < 0 {
		t.Fatalf("third at %d, %v", at, err)
	}
	if err := os.Truncate(segments[0], int64(at)); err != nil {
		t.Fatal(err)
	}
	if topic, err = queue.Open(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = topic.Close() }) // a damaged partition has no clean end
	return group(t, topic, "g", gc)
}

// A consumer that came to the end of what is readable was not told that damage
// stands there: it waited for ever.
func TestDamageAtTheEndOfTheLogIsReported(t *testing.T) {
	for name, gc := range map[string]queue.GroupConfig{
		"commit": {}, "auto commit": {AutoCommit: true}, "linger": {Linger: time.Second}, "small batches": {BatchMax: 1},
	} {
		t.Run("pull/"+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := endsInDamage(t, gc)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				var err error
				n := 0
				for err == nil {
					var b queue.Batch[string]
					if b, err = g.Consumer(0).Pull(ctx); err == nil {
						n += b.Len()
						if !gc.AutoCommit {
							err = g.Consumer(0).Commit()
						}
					}
				}
				wantErr(t, err, penstock.ErrCorrupt)
				for range 2 { // again each time
					_, _, err = g.Consumer(0).TryPull(1)
					wantErr(t, err, penstock.ErrCorrupt)
				}
				if n != 2 {
					t.Errorf("%d events before the damage, want 2", n)
				}
			})
		})
	}
	for name, gc := range map[string]queue.GroupConfig{"one": {}, "several": {Workers: 2}, "linger": {Linger: time.Second}} {
		t.Run("run/"+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := endsInDamage(t, gc)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				err := g.Run(ctx, func(context.Context, penstock.Batch[string]) error { return nil })
				wantErr(t, err, penstock.ErrCorrupt)
				wantCommitted(t, g, 2)
			})
		})
	}
}
