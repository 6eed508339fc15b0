package queue_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func textLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// errEnded is the cause of the contexts of ended.
var errEnded = errors.New("ended before it began")

// ended returns a context that has ended.
func ended(t testing.TB) context.Context {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errEnded)
	return ctx
}
