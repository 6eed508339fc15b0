package stream

import (
	"context"
	"log/slog"
)

// soundLogger is a logger whose handler may panic: a line that it fails to
// write is lost, and nothing else. An agent logs in its turn.
func soundLogger(l *slog.Logger) *slog.Logger {
	if _, ok := l.Handler().(soundHandler); ok {
		return l
	}
	return slog.New(soundHandler{l.Handler()})
}

type soundHandler struct{ slog.Handler }

func (h soundHandler) Enabled(ctx context.Context, level slog.Level) (on bool) {
	defer func() { _ = recover() }()
	return h.Handler.Enabled(ctx, level)
}

func (h soundHandler) Handle(ctx context.Context, r slog.Record) (err error) {
	defer func() { _ = recover() }()
	return h.Handler.Handle(ctx, r)
}

func (h soundHandler) WithAttrs(attrs []slog.Attr) (out slog.Handler) {
	defer func() {
		if recover() != nil {
			out = h
		}
	}()
	return soundHandler{h.Handler.WithAttrs(attrs)}
}

func (h soundHandler) WithGroup(name string) (out slog.Handler) {
	defer func() {
		if recover() != nil {
			out = h
		}
	}()
	return soundHandler{h.Handler.WithGroup(name)}
}
