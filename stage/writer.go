package stage

import (
	"context"
	"fmt"
	"io"
)

// WriteTo returns a sink that writes every event to w, each followed by end: "\n"
// for lines, as [Lines] reads them, or "". It calls Write once per batch, and
// nothing of it is buffered when the callback has returned; w itself is neither
// flushed nor closed. An error of Write fails the sink, and the whole batch counts
// as failed, though w may have taken a part of it. A nil w is an error at Start.
func WriteTo[T ~string | ~[]byte](w io.Writer, end string, opts ...Option) *Sink[T] {
	var buf []byte
	return unnamed("writer", w != nil, func(_ context.Context, in []T) error {
		buf = buf[:0]
		for i := range in {
			buf = append(append(buf, in[i]...), end...)
		}
		n, err := w.Write(buf)
		if err == nil && n < len(buf) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		return nil
	}, opts)
}
