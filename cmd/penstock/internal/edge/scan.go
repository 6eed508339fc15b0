package edge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

var (
	errNotObject = errors.New("it is not a JSON object")
	errUTF8      = errors.New("it is not valid UTF-8")
	errTooDeep   = fmt.Errorf("it nests deeper than %d levels", MaxDepth)
)

// scanObject checks that b is one JSON object and returns the raw values of
// its top-level fields with the given names, nil where there is none or the
// name is "". A named field that occurs twice is an error: readers would
// disagree on which one counts.
func scanObject(b []byte, names [2]string) (found [2][]byte, err error) {
	switch {
	case len(b) == 0 || b[0] != '{':
		return found, errNotObject
	case !utf8.Valid(b):
		return found, errUTF8
	case Depth(b) > MaxDepth:
		return found, errTooDeep
	case !json.Valid(b):
		return found, invalid(b)
	}
	i := skipSpace(b, 1)
	for b[i] != '}' {
		end := skipValue(b, i)
		name := b[i:end]
		i = skipSpace(b, end) // at the colon
		i = skipSpace(b, i+1) // at the value
		end = skipValue(b, i)
		value := b[i:end]
		i = skipSpace(b, end) // at a comma or the closing brace
		if b[i] == ',' {
			i = skipSpace(b, i+1)
		}
		for k, want := range names {
			if want == "" || !nameIs(name, want) {
				continue
			}
			if found[k] != nil {
				return found, fmt.Errorf("field %q occurs twice", want)
			}
			found[k] = value
		}
	}
	return found, nil
}

// invalid says where b stops being JSON.
func invalid(b []byte) error {
	var v json.RawMessage
	err := json.Unmarshal(b, &v)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("it is not valid JSON at byte %d: %w", syntax.Offset, err)
	}
	return errNotObject
}

// nameIs reports whether the quoted name in raw is want.
func nameIs(raw []byte, want string) bool {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1:len(raw)-1]) == want
	}
	var name string
	return json.Unmarshal(raw, &name) == nil && name == want
}

// Depth returns the deepest nesting of brackets outside strings. b need not
// be valid.
func Depth(b []byte) int {
	open, deepest := 0, 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = skipString(b, i) - 1
		case '{', '[':
			open++
			deepest = max(deepest, open)
		case '}', ']':
			open--
		}
	}
	return deepest
}

// skipString returns the index behind the string that begins at i, or len(b).
func skipString(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// skipValue returns the index behind the value that begins at i of valid JSON.
func skipValue(b []byte, i int) int {
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		for open := 0; ; {
			switch b[i] {
			case '"':
				i = skipString(b, i)
				continue
			case '{', '[':
				open++
			case '}', ']':
				open--
				if open == 0 {
					return i + 1
				}
			}
			i++
		}
	}
	for i < len(b) && b[i] > ' ' && b[i] != ',' && b[i] != '}' && b[i] != ']' {
		i++
	}
	return i
}

func skipSpace(b []byte, i int) int {
	for b[i] == ' ' || b[i] == '\t' || b[i] == '\r' || b[i] == '\n' {
		i++
	}
	return i
}

// textOf returns the text of an id or a key: a string, or an integer as it is
// written. Fractions and exponents are refused, since equal numbers could be
// written differently and would be different keys.
func textOf(raw []byte, field string) (string, error) {
	if raw == nil {
		return "", fmt.Errorf("field %q is missing", field)
	}
	text := string(raw)
	if raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0 {
		text = string(raw[1 : len(raw)-1])
	} else if raw[0] == '"' {
		if err := json.Unmarshal(raw, &text); err != nil {
			return "", err
		}
	} else if len(bytes.Trim(raw[1:], "0123456789")) > 0 || raw[0] != '-' && (raw[0] < '0' || raw[0] > '9') {
		return "", fmt.Errorf("field %q is neither a string nor an integer", field)
	}
	if text == "" || len(text) > maxText {
		return "", fmt.Errorf("field %q is empty or longer than %d bytes", field, maxText)
	}
	return text, nil
}
