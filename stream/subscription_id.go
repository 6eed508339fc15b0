package stream

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// SubscriptionID is 128 bits that name a subscription everywhere: the same for
// the same provider, stream and subscription name on every node and after every
// restart. The highest bit of its last byte is set for an implicit one. It is
// comparable and can be a map key.
type SubscriptionID [16]byte

// Implicit reports whether a binding declares the subscription.
func (id SubscriptionID) Implicit() bool { return id[15]&0x80 != 0 }

// String returns 32 hexadecimal digits.
func (id SubscriptionID) String() string { return hex.EncodeToString(id[:]) }

// ID returns the subscription's id. It depends on the provider, the stream, the
// name and whether the subscription is implicit, and on nothing else: not on
// the incarnation, and not on the type or the name of its handler.
func (r SubscriptionRecord) ID() (id SubscriptionID) {
	var b []byte
	for _, part := range []string{r.Stream.Provider, r.Stream.Namespace, r.Stream.Key, r.Name} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	sum := sha256.Sum256(b)
	copy(id[:], sum[:])
	id[15] &^= 0x80
	if r.Implicit {
		id[15] |= 0x80
	}
	return id
}
