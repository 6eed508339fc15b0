package segfile

import (
	"fmt"
	"strings"

	"github.com/penstock/penstock"
)

// maxEscaped bounds an escaped name, so that it fits a path component with a
// suffix everywhere.
const maxEscaped = 240

const upperHex = "0123456789ABCDEF"

// EscapeName returns the path component for a topic or group name. It is the
// same on every operating system and never depends on one, so that a data
// directory can be moved, and file systems that fold case cannot merge two
// names: the bytes [a-z0-9._-] stay; every other byte, a leading or a
// trailing dot, and the first letter of a name that Windows keeps for devices
// become %XX. Different names always give different components;
// [UnescapeName] is the inverse.
func EscapeName(name string) string {
	var b strings.Builder
	device := isDevice(name)
	for i := range len(name) {
		c := name[i]
		plain := c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
		if c == '.' && (i == 0 || i == len(name)-1) || i == 0 && device {
			plain = false
		}
		if plain {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', upperHex[c>>4], upperHex[c&15]})
		}
	}
	return b.String()
}

// isDevice reports whether Windows takes a component for a device: a reserved
// word, alone or before a dot. Upper case is escaped in any case.
func isDevice(name string) bool {
	word, _, _ := strings.Cut(name, ".")
	switch word {
	case "con", "prn", "aux", "nul":
		return true
	}
	return len(word) == 4 && (strings.HasPrefix(word, "com") || strings.HasPrefix(word, "lpt")) &&
		word[3] >= '0' && word[3] <= '9'
}

// UnescapeName returns the name behind a path component. The error matches
// [penstock.ErrInvalid] when [EscapeName] does not produce the component.
func UnescapeName(component string) (string, error) {
	b := make([]byte, 0, len(component))
	for i := 0; i < len(component); i++ {
		c := component[i]
		if c == '%' && i+2 < len(component) {
			hi, lo := strings.IndexByte(upperHex, component[i+1]), strings.IndexByte(upperHex, component[i+2])
			if hi >= 0 && lo >= 0 {
				c = byte(hi<<4 | lo)
				i += 2
			}
		}
		b = append(b, c)
	}
	if name := string(b); EscapeName(name) == component {
		return name, nil
	}
	return "", &penstock.FieldError{Field: "name", Reason: fmt.Sprintf("%q is not an escaped name", component)}
}

// checkName refuses names that cannot become a path component.
func checkName(field, name string) error {
	if strings.TrimSpace(name) == "" {
		return &penstock.FieldError{Field: field, Reason: "is blank"}
	}
	if n := len(EscapeName(name)); n > maxEscaped {
		return &penstock.FieldError{Field: field, Reason: fmt.Sprintf("takes %d bytes when escaped, at most %d", n, maxEscaped)}
	}
	return nil
}
