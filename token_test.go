package penstock_test

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock"
)

// Values on both sides of where a signed or a narrower comparison goes wrong.
var edges = []uint64{0, 1, 1<<31 - 1, 1 << 31, 1<<31 + 1, 1<<32 - 1, 1 << 32, 1<<32 + 1,
	1<<63 - 1, 1 << 63, 1<<63 + 1, math.MaxUint64 - 1, math.MaxUint64}

func TestTokensAreOrderedAcrossTheEdges_FM104(t *testing.T) {
	var tokens []penstock.Token
	for _, hi := range edges {
		for _, lo := range edges {
			for _, index := range []uint32{0, 1<<31 - 1, 1 << 31, math.MaxUint32} {
				tokens = append(tokens, penstock.Token{Hi: hi, Lo: lo, Index: index})
			}
		}
	}
	for i := range tokens {
		for j := range tokens {
			want := 0
			switch {
			case i < j:
				want = -1
			case i > j:
				want = 1
			}
			if got := tokens[i].Compare(tokens[j]); got != want {
				t.Fatalf("%v against %v is %d, want %d", tokens[i], tokens[j], got, want)
			}
		}
	}
	shuffled := slices.Clone(tokens)
	slices.Reverse(shuffled)
	slices.SortFunc(shuffled, penstock.Token.Compare)
	if !slices.Equal(shuffled, tokens) {
		t.Error("sorting does not restore the order")
	}
}

func TestTokenText(t *testing.T) {
	if got := (penstock.Token{Hi: 1, Lo: 2, Index: 3}).String(); got != "t1:1:2:3" {
		t.Errorf("text %q, want t1:1:2:3", got)
	}
	for _, tok := range []penstock.Token{{}, {Hi: math.MaxUint64, Lo: math.MaxUint64, Index: math.MaxUint32}, {Lo: 1 << 63}} {
		text, err := tok.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var back penstock.Token
		if err := back.UnmarshalText(text); err != nil || back != tok {
			t.Errorf("%s came back as %v, %v", text, back, err)
		}
		b, err := json.Marshal(map[penstock.Token]penstock.Token{tok: tok})
		if err != nil {
			t.Fatal(err)
		}
		var m map[penstock.Token]penstock.Token
		if err := json.Unmarshal(b, &m); err != nil || m[tok] != tok {
			t.Errorf("through JSON: %v, %v", m, err)
		}
	}
}

func TestTokenTextModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tok := penstock.Token{Hi: rapid.Uint64().Draw(t, "hi"), Lo: rapid.Uint64().Draw(t, "lo"), Index: rapid.Uint32().Draw(t, "index")}
		if back, err := penstock.ParseToken(tok.String()); err != nil || back != tok {
			t.Fatalf("%v came back as %v, %v", tok, back, err)
		}
	})
}

func TestParseTokenRefusesOtherText(t *testing.T) {
	for _, s := range []string{"", "t1", "t1:1:2", "t1:1:2:3:4", "t2:1:2:3", "1:2:3", "t1:-1:2:3", "t1:+1:2:3", "t1:1:2:0x3",
		"t1:18446744073709551616:0:0", "t1:0:0:4294967296", "t1: 1:2:3", "t1:1:2:3\n", "t1:1_0:2:3", "t1::2:3"} {
		tok := penstock.Token{Lo: 9}
		if err := tok.UnmarshalText([]byte(s)); !errors.Is(err, penstock.ErrInvalid) || tok != (penstock.Token{Lo: 9}) {
			t.Errorf("%q: %v, token %v, want ErrInvalid and the token as it was", s, err, tok)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add("t1:1:2:3")
	f.Add("t1:18446744073709551615:0:4294967295")
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := penstock.ParseToken(s)
		if err != nil {
			return
		}
		if back, err := penstock.ParseToken(tok.String()); err != nil || back != tok {
			t.Fatalf("%q: %v came back as %v, %v", s, tok, back, err)
		}
	})
}
