package edge

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/penstock/penstock"
)

// firstRead is the largest buffer that is taken on the word of a
// Content-Length alone; it grows only with the bytes that really come.
const firstRead = 64 << 10

// readBody reads the body whole. It reserves the body's length, or the largest
// one when the length is not told, before it reads; release gives that back
// and must be called once err is nil. The body belongs to the caller.
func (e *Edge) readBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	limit := e.config.MaxBody
	reserve := penstock.Bytes(r.ContentLength)
	switch {
	case reserve > limit:
		w.Header().Set("Connection", "close") // the body will not be read
		return nil, nil, tooLong("body", limit)
	case reserve < 0:
		reserve = limit
	}
	if !e.bodies.TryAcquire(0, reserve) {
		w.Header().Set("Connection", "close")
		return nil, nil, errBusy
	}
	release = func() { e.bodies.Release(0, reserve) }
	body, err = readAll(http.MaxBytesReader(w, r.Body, int64(limit)), int(min(reserve, firstRead)))
	if err == nil && len(body) == 0 {
		err = refuse(http.StatusBadRequest, "empty_body", "the body is empty")
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	return body, release, nil
}

func readAll(r io.Reader, first int) ([]byte, error) {
	b := make([]byte, 0, max(first, 512))
	for {
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		var long *http.MaxBytesError
		switch {
		case err == io.EOF:
			return b, nil
		case errors.As(err, &long):
			return nil, tooLong("body", penstock.Bytes(long.Limit))
		case err != nil:
			return nil, refuse(http.StatusBadRequest, "body_cut", fmt.Sprintf("the body ended early: %v", err))
		}
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
	}
}

func tooLong(what string, limit penstock.Bytes) error {
	return refuse(http.StatusRequestEntityTooLarge, "too_large", fmt.Sprintf("the %s is longer than %v", what, limit))
}
