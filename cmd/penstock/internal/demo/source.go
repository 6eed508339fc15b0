package demo

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"unicode/utf8"

	"github.com/penstock/penstock/cmd/penstock/internal/edge"
)

// source makes the events of a run, one after the other. It is used by one
// goroutine.
type source interface {
	// next returns the key ("" = none) and the data of the next event, one
	// JSON value that belongs to the caller. io.EOF ends the run's production
	// well, any other error makes the run fail.
	next() (key string, data []byte, err error)
}

// generator makes orders of customers, the same ones for the same seed.
type generator struct {
	rand *rand.Rand
	n    int
}

func newGenerator(seed uint64) *generator {
	return &generator{rand: rand.New(rand.NewPCG(seed, 1))}
}

func (g *generator) next() (string, []byte, error) {
	g.n++
	customer := "customer-" + strconv.Itoa(g.rand.IntN(customers)+1)
	data := fmt.Appendf(nil, `{"order":%d,"customer":%q,"total_cents":%d,"items":%d}`,
		g.n, customer, g.rand.IntN(20_000), g.rand.IntN(9)+1)
	return customer, data, nil
}

// inputError is a line of the input that cannot be sent, or, as line 0, what is
// wrong with all of them.
type inputError struct {
	line int
	why  string
}

func (e *inputError) Error() string {
	if e.line == 0 {
		return "input: " + e.why
	}
	return fmt.Sprintf("input line %d: %s", e.line, e.why)
}

// byteOrderMark is what some editors and shells begin a UTF-8 file with.
var byteOrderMark = []byte("\ufeff")

// input reads NDJSON. Blank lines, and a byte order mark before the first line,
// are skipped.
type input struct {
	lines *bufio.Reader
	key   string
	line  int
	sent  bool // a line was read and can be sent
	keyed bool // one of them had a key
}

func newInput(r io.Reader, key string) *input {
	return &input{lines: bufio.NewReaderSize(r, 64<<10), key: key}
}

func (in *input) next() (string, []byte, error) {
	for {
		line, err := in.readLine()
		if len(line) == 0 {
			if err == io.EOF && in.key != "" && in.sent && !in.keyed {
				err = &inputError{why: fmt.Sprintf("no line has the field %q that --key names, so no order was kept or judged", in.key)}
			}
			if err != nil {
				return "", nil, err
			}
			continue
		}
		if why := unfit(line); why != "" {
			return "", nil, &inputError{in.line, why}
		}
		key, err := in.keyOf(line)
		in.sent, in.keyed = true, in.keyed || key != ""
		return key, line, err
	}
}

// unfit says why the edge would refuse a line, "" when it would not: one bad
// line must not take the good lines of its request with it.
func unfit(line []byte) string {
	switch {
	case bytes.HasPrefix(line, []byte{0xff, 0xfe}), bytes.HasPrefix(line, []byte{0xfe, 0xff}):
		return "begins like UTF-16; NDJSON is UTF-8"
	case !utf8.Valid(line):
		return "is not valid UTF-8"
	case !json.Valid(line):
		return "is not one JSON value"
	case edge.Depth(line) >= edge.MaxDepth: // the driver puts one level around it
		return fmt.Sprintf("nests deeper than %d levels", edge.MaxDepth-1)
	}
	return ""
}

// readLine returns the next line without the space around it. The error is
// io.EOF only when nothing was read.
func (in *input) readLine() ([]byte, error) {
	in.line++
	var line []byte
	for {
		part, err := in.lines.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, &inputError{in.line, fmt.Sprintf("is longer than %d bytes", maxLine)}
		}
		line = append(line, part...)
		switch {
		case err == nil, err == io.EOF && len(line) > 0:
			if in.line == 1 {
				line = bytes.TrimPrefix(line, byteOrderMark)
			}
			return bytes.TrimSpace(line), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

func (in *input) keyOf(line []byte) (string, error) {
	if in.key == "" {
		return "", nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil {
		return "", &inputError{in.line, "is not a JSON object, so it has no field " + strconv.Quote(in.key)}
	}
	raw, ok := fields[in.key]
	if !ok || string(raw) == "null" {
		return "", nil // no key: no order is asked of it
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		text = string(raw) // numbers and the like are keys as they are written
	}
	if len(text) > maxKey {
		return "", &inputError{in.line, fmt.Sprintf("field %q is longer than %d bytes", in.key, maxKey)}
	}
	return text, nil
}

// maxKey is the largest key that the edge takes.
const maxKey = 1024
