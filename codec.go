package penstock

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"
)

// Codec turns values into bytes and back. It is part of the stored format: a
// topic on disk records the codec's ID and refuses to open with another.
// Implementations must be safe for concurrent use.
type Codec[T any] interface {
	// ID names the codec and its version, for example "json/1".
	ID() string
	// Append appends the encoded value to dst and returns the result. It must
	// not keep dst.
	Append(dst []byte, v T) ([]byte, error)
	// Decode sets *v from src, which may be empty. It must not keep src or
	// share its memory with *v.
	Decode(src []byte, v *T) error
}

// JSON returns the codec of package encoding/json. Numbers in fields of type
// any follow that package: use json.Number or typed fields where integers must
// stay exact.
func JSON[T any]() Codec[T] { return jsonCodec[T]{} }

type jsonCodec[T any] struct{}

func (jsonCodec[T]) ID() string { return "json/1" }

func (jsonCodec[T]) Append(dst []byte, v T) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return dst, err
	}
	return append(dst, b...), nil
}

func (jsonCodec[T]) Decode(src []byte, v *T) error {
	var fresh T // encoding/json merges into what is there; a reused slot must not shine through
	if err := json.Unmarshal(src, &fresh); err != nil {
		return err
	}
	*v = fresh
	return nil
}

// Raw returns the codec that stores bytes as they are. Decode copies.
func Raw() Codec[[]byte] { return rawCodec{} }

type rawCodec struct{}

func (rawCodec) ID() string                                  { return "raw/1" }
func (rawCodec) Append(dst []byte, v []byte) ([]byte, error) { return append(dst, v...), nil }

func (rawCodec) Decode(src []byte, v *[]byte) error {
	*v = bytes.Clone(src)
	if *v == nil {
		*v = []byte{}
	}
	return nil
}

// String returns the codec of UTF-8 strings. Invalid UTF-8 is refused in both
// directions; use [Raw] for arbitrary bytes.
func String() Codec[string] { return stringCodec{} }

type stringCodec struct{}

func (stringCodec) ID() string { return "string/1" }

func (stringCodec) Append(dst []byte, v string) ([]byte, error) {
	if !utf8.ValidString(v) {
		return dst, fmt.Errorf("string codec: invalid UTF-8")
	}
	return append(dst, v...), nil
}

func (stringCodec) Decode(src []byte, v *string) error {
	if !utf8.Valid(src) {
		return fmt.Errorf("string codec: invalid UTF-8")
	}
	*v = string(src)
	return nil
}

// Fixed returns the codec of fixed-layout values: numbers, booleans, and
// arrays and structs of them, little-endian without padding, every field
// exported. Decode refuses any other length than the type's. The codec's ID
// tells layouts apart, not names: a field may be renamed, but neither moved nor
// given another type. The error matches [ErrInvalid] when T has no fixed
// layout (int and uint have none: their size depends on the platform).
func Fixed[T any]() (Codec[T], error) {
	var zero T
	typ := reflect.TypeFor[T]()
	size := binary.Size(zero)
	if size < 0 || hasHidden(typ) {
		return nil, &FieldError{Field: "T", Reason: typ.String() + " has no fixed layout"}
	}
	id := fmt.Sprintf("fixed/1:%d:%016x", size, HashKey(layout(typ)))
	return fixedCodec[T]{id: id, size: size}, nil
}

// layout spells the kinds that typ is made of in their order. It is part of
// the stored format, by its hash in the codec's ID.
func layout(typ reflect.Type) string {
	switch typ.Kind() {
	case reflect.Array:
		return fmt.Sprintf("[%d]%s", typ.Len(), layout(typ.Elem()))
	case reflect.Struct:
		var b strings.Builder
		for i := range typ.NumField() {
			b.WriteString(layout(typ.Field(i).Type) + ";")
		}
		return "{" + b.String() + "}"
	default:
		return typ.Kind().String()
	}
}

// hasHidden reports whether typ holds an unexported field, which
// encoding/binary cannot set.
func hasHidden(typ reflect.Type) bool {
	switch typ.Kind() {
	case reflect.Slice: // sized by its value, so not fixed
		return true
	case reflect.Array:
		return hasHidden(typ.Elem())
	case reflect.Struct:
		for i := range typ.NumField() {
			f := typ.Field(i)
			if !f.IsExported() && f.Name != "_" || hasHidden(f.Type) {
				return true
			}
		}
	}
	return false
}

type fixedCodec[T any] struct {
	id   string
	size int
}

func (c fixedCodec[T]) ID() string { return c.id }

func (c fixedCodec[T]) Append(dst []byte, v T) ([]byte, error) {
	return binary.Append(dst, binary.LittleEndian, v)
}

func (c fixedCodec[T]) Decode(src []byte, v *T) error {
	if len(src) != c.size {
		return fmt.Errorf("fixed codec: %d bytes, want %d", len(src), c.size)
	}
	_, err := binary.Decode(src, binary.LittleEndian, v)
	return err
}
