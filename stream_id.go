package penstock

import "strings"

// StreamID names a stream inside a provider. It is comparable and can be a map
// key. Making one creates nothing anywhere.
type StreamID struct{ Namespace, Key string }

// IsZero reports whether s is the zero StreamID, which names no stream.
func (s StreamID) IsZero() bool { return s == StreamID{} }

// String returns "namespace/key".
func (s StreamID) String() string { return s.Namespace + "/" + s.Key }

// Validate returns an error that matches [ErrInvalid] when the namespace is
// blank or a part holds a NUL byte, which separates the parts where they are
// hashed.
func (s StreamID) Validate() error {
	if strings.TrimSpace(s.Namespace) == "" {
		return &FieldError{Field: "Namespace", Reason: "is blank"}
	}
	if strings.IndexByte(s.Namespace, 0) >= 0 || strings.IndexByte(s.Key, 0) >= 0 {
		return &FieldError{Field: "StreamID", Reason: "holds a NUL byte"}
	}
	return nil
}

// Hash returns the hash of the stream, by which mappers choose a queue. It is
// [HashKey] of namespace, NUL, key, and a public contract like it.
func (s StreamID) Hash() uint64 {
	h := uint64(fnvOffset)
	h = fnv1a(h, s.Namespace)
	h = fnv1a(h, "\x00")
	return finalise(fnv1a(h, s.Key))
}
