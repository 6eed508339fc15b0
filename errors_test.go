package penstock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

func TestErrorsMatchWhatTheyMean(t *testing.T) {
	cause := io.ErrUnexpectedEOF
	for _, c := range []struct {
		err   error
		is    []error
		isNot []error
		text  string
	}{
		{&penstock.FieldError{Field: "Partitions", Reason: "-1 is negative"},
			[]error{penstock.ErrInvalid}, []error{penstock.ErrCorrupt}, "Partitions: -1 is negative"},
		{&penstock.CorruptError{Topic: "orders", Partition: 2, File: "7.seg", Position: 99, First: 5, Last: 9, Cause: cause},
			[]error{penstock.ErrCorrupt, cause}, []error{penstock.ErrInvalid},
			`corrupt: topic "orders" partition 2 file 7.seg position 99 offsets 5 to 9: unexpected EOF`},
		{&penstock.CorruptError{Topic: "orders", File: "0.seg", First: 5, Last: 5, Cause: cause}, []error{penstock.ErrCorrupt}, nil,
			`corrupt: topic "orders" partition 0 file 0.seg position 0 from offset 5 on: unexpected EOF`},
		{&penstock.PartialError{Accepted: 3, Err: context.Canceled},
			[]error{context.Canceled}, []error{penstock.ErrInvalid}, "interrupted after 3 accepted events: context canceled"},
		{&penstock.DrainError{Left: 4, Err: context.DeadlineExceeded},
			[]error{context.DeadlineExceeded}, []error{context.Canceled},
			"drain ended with 4 events not settled; they will be delivered again: context deadline exceeded"},
		{&penstock.DrainError{Left: 4, Gone: true, Err: context.DeadlineExceeded},
			[]error{context.DeadlineExceeded}, []error{context.Canceled},
			"drain ended with 4 events not settled; they are discarded: context deadline exceeded"},
		{&penstock.DrainError{Left: 4, Busy: []string{"printer for 3s"}, Err: context.DeadlineExceeded},
			[]error{context.DeadlineExceeded}, []error{context.Canceled},
			"drain ended with 4 events not settled; they will be delivered again, unless user code settles them yet; in user code: printer for 3s: context deadline exceeded"},
		{&penstock.DrainError{Busy: []string{"receiver for 3s"}, Err: context.DeadlineExceeded},
			[]error{context.DeadlineExceeded}, []error{context.Canceled},
			"drain ended with 0 events not settled; in user code: receiver for 3s: context deadline exceeded"},
		{&penstock.PanicError{Where: "group billing", Value: cause},
			[]error{cause}, []error{penstock.ErrInvalid}, "group billing: panic: unexpected EOF"},
		{&penstock.PanicError{Where: "group billing", Value: "boom"}, nil, []error{cause}, "group billing: panic: boom"},
		{&penstock.PanicError{Where: "group billing"}, nil, []error{cause}, "group billing: runtime.Goexit called"},
	} {
		wrapped := fmt.Errorf("append partition 3: %w", c.err)
		for _, target := range c.is {
			if !errors.Is(wrapped, target) {
				t.Errorf("%v does not match %v", c.err, target)
			}
		}
		for _, target := range c.isNot {
			if errors.Is(wrapped, target) {
				t.Errorf("%v matches %v", c.err, target)
			}
		}
		if c.err.Error() != c.text {
			t.Errorf("text %q, want %q", c.err, c.text)
		}
	}
}

func TestErrorsAsFindsTheDetails(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("queue: %w", fmt.Errorf("partition 1: %w", err)) }
	if e, ok := errors.AsType[*penstock.FieldError](wrap(&penstock.FieldError{Field: "Dir"})); !ok || e.Field != "Dir" {
		t.Error("FieldError was not found")
	}
	if e, ok := errors.AsType[*penstock.CorruptError](wrap(&penstock.CorruptError{First: 7})); !ok || e.First != 7 {
		t.Error("CorruptError was not found")
	}
	if e, ok := errors.AsType[*penstock.PartialError](wrap(&penstock.PartialError{Accepted: 7})); !ok || e.Accepted != 7 {
		t.Error("PartialError was not found")
	}
	if e, ok := errors.AsType[*penstock.DrainError](wrap(&penstock.DrainError{Left: 7})); !ok || e.Left != 7 {
		t.Error("DrainError was not found")
	}
	if e, ok := errors.AsType[*penstock.PanicError](wrap(&penstock.PanicError{Value: 7})); !ok || e.Value != 7 {
		t.Error("PanicError was not found")
	}
}

func TestSharedErrorsAreDifferent(t *testing.T) {
	all := []error{penstock.ErrFull, penstock.ErrClosed, penstock.ErrInvalid, penstock.ErrExists, penstock.ErrNotFound,
		penstock.ErrTooLarge, penstock.ErrCorrupt, penstock.ErrLocked, penstock.ErrDiskFull, penstock.ErrUnknownOutcome,
		penstock.ErrOffsetOutOfRange, penstock.ErrUnsupported}
	for i, a := range all {
		for j, b := range all {
			if errors.Is(a, b) != (i == j) || i != j && a.Error() == b.Error() {
				t.Errorf("%v and %v are not told apart", a, b)
			}
		}
	}
}

func TestContextErrorMatchesErrAndCause(t *testing.T) {
	cause := errors.New("deploy")
	canceled, cancel := context.WithCancelCause(t.Context())
	if err := penstock.ContextError(canceled); err != nil {
		t.Fatalf("%v while the context lives", err)
	}
	cancel(cause)
	err := penstock.ContextError(canceled)
	if !errors.Is(err, cause) || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "deploy") {
		t.Errorf("%v matches not both context.Canceled and its cause", err)
	}

	plain, cancelPlain := context.WithCancel(t.Context())
	cancelPlain()
	if err := penstock.ContextError(plain); err != context.Canceled {
		t.Errorf("without a cause: %v, want context.Canceled itself", err)
	}

	wrapping, cancelWrapping := context.WithCancelCause(t.Context())
	own := fmt.Errorf("deploy: %w", context.Canceled)
	cancelWrapping(own)
	if err := penstock.ContextError(wrapping); err != own {
		t.Errorf("a cause that matches already was wrapped: %v", err)
	}
}

func TestContextErrorOfADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("drain")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
		defer cancel()
		<-ctx.Done()
		if err := penstock.ContextError(ctx); !errors.Is(err, cause) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v matches not both context.DeadlineExceeded and its cause", err)
		}
	})
}
