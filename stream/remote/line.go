package remote

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/penstock/penstock"
)

// Bounds that do not depend on a configuration.
const (
	maxExpiry    = 5 * time.Minute  // of a demand
	helloTimeout = 10 * time.Second // for the first line of the other end
	maxQuestions = 64               // handshakes and notices that are not answered yet, per connection
	minLine      = 64 << 10         // the least that a longest line may be, in bytes
)

// Errors that end a connection.
var (
	// ErrProtocol: the other end has sent a line that cannot be understood, or
	// one that it must not send.
	ErrProtocol = errors.New("protocol violated")
	// ErrLost: the connection has ended, or the other end was silent for too
	// long.
	ErrLost = errors.New("connection lost")
	// ErrReplaced: another subscriber has connected to the same owner.
	ErrReplaced = errors.New("another subscriber has taken the place")
)

// bad is a violation of the protocol, in words.
func bad(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrProtocol)
}

// appendFrame appends the line of a frame.
func appendFrame(dst []byte, f *frame) ([]byte, error) {
	b, err := json.Marshal(f)
	if err != nil {
		return dst, err
	}
	return append(append(dst, b...), '\n'), nil
}

// decoder reads lines of at most max bytes, the end of the line among them. It
// allocates what arrives, never what is announced. The first error stays.
type decoder struct {
	r     *bufio.Reader
	max   int
	owner bool // what it reads is of an owner
	line  []byte
	n     int // lines read
	err   error
}

func newDecoder(r io.Reader, lineMax int, owner bool) *decoder {
	return &decoder{r: bufio.NewReaderSize(r, 4<<10), max: lineMax, owner: owner}
}

// next returns the next frame, checked. The error is io.EOF when the other end
// closed behind a whole line; it matches ErrProtocol for a bad line,
// penstock.ErrTooLarge for one above the limit, and io.ErrUnexpectedEOF for one
// that is cut short.
func (d *decoder) next() (frame, error) {
	if d.err == nil {
		var f frame
		if f, d.err = d.read(); d.err == nil {
			return f, nil
		}
	}
	return frame{}, d.err
}

func (d *decoder) read() (frame, error) {
	d.line = d.line[:0]
	for {
		part, err := d.r.ReadSlice('\n')
		if len(d.line)+len(part) > d.max {
			return frame{}, fmt.Errorf("line %d is longer than %d bytes: %w: %w", d.n+1, d.max, penstock.ErrTooLarge, ErrProtocol)
		}
		d.line = append(d.line, part...)
		switch {
		case err == nil:
			d.n++
			f, err := parseFrame(d.line, d.owner)
			if err != nil {
				return frame{}, fmt.Errorf("line %d: %w", d.n, err)
			}
			if cap(d.line) > 64<<10 {
				d.line = nil // a long line is not kept
			}
			return f, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(d.line) > 0:
			return frame{}, fmt.Errorf("line %d is cut short after %d bytes: %w", d.n+1, len(d.line), io.ErrUnexpectedEOF)
		default:
			return frame{}, err
		}
	}
}

// parseFrame reads one line. Fields that it does not know are ignored; types
// that it does not know are refused.
func parseFrame(line []byte, owner bool) (frame, error) {
	var f frame
	line = bytes.TrimRight(line, "\r\n")
	if !utf8.Valid(line) {
		return f, bad("not UTF-8")
	}
	if len(line) == 0 || line[0] != '{' {
		return f, bad("not an object of JSON")
	}
	if err := json.Unmarshal(line, &f); err != nil {
		return f, fmt.Errorf("%w: %w", err, ErrProtocol)
	}
	if err := f.check(owner); err != nil {
		return frame{}, err
	}
	return f, nil
}
