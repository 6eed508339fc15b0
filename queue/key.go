package queue

import (
	"log/slog"
	"runtime/debug"

	"github.com/penstock/penstock"
)

// keyOf returns the key of an event, by which order is kept: the one that was
// given with it, else what Config.Key says; "" when it has none. A selector
// that panics has no key to tell either. Events are looked at again and again,
// so that is counted, and only the first is logged.
func (t *Topic[T]) keyOf(v T, meta *penstock.Meta) (key string) {
	if meta != nil && meta.Key != "" {
		return meta.Key
	}
	if t.config.Key == nil {
		return ""
	}
	defer func() {
		if r := recover(); r != nil && t.seen.keyPanics.Add(1) == 1 {
			t.logger.Warn("Config.Key panicked; the event counts as one without a key, and further panics are only counted", slog.Any("panic", r), slog.String("stack", string(debug.Stack())))
		}
	}()
	return t.config.Key(v)
}
