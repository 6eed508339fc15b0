package remote

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/stream"
)

// wrong is an error that panics when a nil pointer to it is asked.
type wrong struct{ inner error }

func (w *wrong) Error() string { return w.inner.Error() }
func (w *wrong) Unwrap() error { return w.inner }

// Such an error ended the process: it was asked outside of what guards user
// code.
func TestErrorThatPanicsIsTold(t *testing.T) {
	var broken *wrong
	f := errorFrame(7, broken)
	if f.Call != 7 || f.Gone || f.Away || !strings.Contains(string(f.Error), "panics") {
		t.Errorf("frame %+v", f)
	}
	f = answerFrame(8, stream.Answer{Failed: []stream.ItemFailure{{Index: 2, Err: broken}}}, nil, 64<<10)
	if len(f.Failed) != 1 || !strings.Contains(string(f.Failed[0].Error), "panics") {
		t.Errorf("frame %+v", f)
	}
	if f = errorFrame(9, stream.ErrAway); !f.Away || f.Gone {
		t.Errorf("frame %+v", f)
	}
}

type rudeBackoff struct{}

func (rudeBackoff) Next(int) time.Duration { panic("rude") }

// A backoff that panicked took Run with it, which then could not be called
// again.
func TestBackoffOfASubscriberThatPanicsPauses(t *testing.T) {
	s, err := NewSubscriber(SubscriberConfig{
		Dial:     func(context.Context) (io.ReadWriteCloser, error) { return nil, io.EOF },
		Consumer: func(stream.SubscriptionRecord) (stream.Consumer, error) { return nil, io.EOF },
		Backoff:  rudeBackoff{},
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := s.pause(0); d != brokenPause {
		t.Errorf("pause %v", d)
	}
}

type silentConn struct{ io.ReadWriteCloser }

// A subscriber that asks and does not read made the owner's memory grow.
func TestAliveFramesDoNotPileUp(t *testing.T) {
	l := newLink(silentConn{})
	for range 1000 {
		l.push(outgoing{frame: frame{Kind: kindAlive}}, outgoing{frame: frame{Kind: kindAlive}})
	}
	if out, _ := l.take(); len(out) != 1 {
		t.Errorf("%d frames wait", len(out))
	}
	l.push(outgoing{frame: frame{Kind: kindAlive}})
	if out, _ := l.take(); len(out) != 1 {
		t.Errorf("%d frames wait behind those that were taken", len(out))
	}
}
