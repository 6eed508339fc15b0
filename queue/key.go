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

// sizeMax is the largest size that is added up: as many as a run has in hands
// do not overflow.
const sizeMax = penstock.Bytes(1) << 50

// sizeHeld returns the size of an event that the topic holds, as Config.Size
// tells it: one that is negative, or a call that panics, counts nothing. Such an
// event must not stop the others, and its loop is no place to panic in: what it
// decides would be decided in part. It is counted, and only the first is logged.
func (t *Topic[T]) sizeHeld(v T) (size penstock.Bytes) {
	defer func() {
		if r := recover(); r != nil && t.seen.sizePanics.Add(1) == 1 {
			t.logger.Warn("Config.Size panicked; the event counts no bytes, and further panics are only counted", slog.Any("panic", r), slog.String("stack", string(debug.Stack())))
		}
	}()
	return min(max(0, t.config.Size(v)), sizeMax)
}
