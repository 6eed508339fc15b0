package penstock

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Token is a position in one queue, ordered by Hi, then Lo, then Index, all
// compared as unsigned numbers. Adapters make tokens; the zero Token is the
// lowest. Index numbers the events inside one container.
type Token struct {
	Hi, Lo uint64
	Index  uint32
}

// Compare returns -1, 0 or 1 as t is older than, equal to, or newer than u.
func (t Token) Compare(u Token) int {
	return cmp.Or(cmp.Compare(t.Hi, u.Hi), cmp.Compare(t.Lo, u.Lo), cmp.Compare(t.Index, u.Index))
}

// String returns the text form, "t1:HI:LO:INDEX" in decimal. The leading t1 is
// the version of the form.
func (t Token) String() string {
	return fmt.Sprintf("t1:%d:%d:%d", t.Hi, t.Lo, t.Index)
}

// MarshalText returns the text form.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText sets t from its text form. The error matches [ErrInvalid].
func (t *Token) UnmarshalText(text []byte) error {
	u, err := ParseToken(string(text))
	if err == nil {
		*t = u
	}
	return err
}

// ParseToken reads the text form of a token. The error matches [ErrInvalid].
func ParseToken(s string) (Token, error) {
	parts := strings.Split(s, ":")
	if len(parts) != 4 || parts[0] != "t1" {
		return Token{}, &FieldError{Field: "token", Reason: fmt.Sprintf("%q is not of the form t1:HI:LO:INDEX", s)}
	}
	var n [3]uint64
	for i, bits := range []int{64, 64, 32} {
		v, err := strconv.ParseUint(parts[i+1], 10, bits)
		if err != nil {
			return Token{}, &FieldError{Field: "token", Reason: fmt.Sprintf("%q: %v", s, err)}
		}
		n[i] = v
	}
	return Token{Hi: n[0], Lo: n[1], Index: uint32(n[2])}, nil
}
