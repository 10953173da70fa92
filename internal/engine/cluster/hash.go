package cluster

import (
	"hash/maphash"
	"math/bits"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// digest is a 128-bit hash that stands for what was hashed: in practice, no two different contents
// have the same digest.
type digest [2]uint64

// Two seeds, drawn at start, so that nobody can prepare contents that collide.
var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// hasher folds values into a digest. Successive values must stay distinguishable: values of
// variable length are preceded by their length, optional ones by a marker.
type hasher struct{ a, b uint64 }

func (h *hasher) sum() digest { return digest{h.a, h.b} }

func (h *hasher) word(v uint64) {
	h.a = fold(h.a^v, 0x9e3779b97f4a7c15)
	h.b = fold(h.b^bits.RotateLeft64(v, 32), 0xd6e8feb86659fd93)
}

func fold(x, k uint64) uint64 {
	hi, lo := bits.Mul64(x^0xa0761d6478bd642f, k)
	return hi ^ lo
}

func (h *hasher) int(v int64) { h.word(uint64(v)) }

func (h *hasher) bool(v bool) {
	if v {
		h.word(1)
	} else {
		h.word(2)
	}
}

func (h *hasher) string(s string) {
	h.word(uint64(len(s)))
	if s != "" {
		h.a = fold(h.a^maphash.String(seeds[0], s), 0x9e3779b97f4a7c15)
		h.b = fold(h.b^maphash.String(seeds[1], s), 0xd6e8feb86659fd93)
	}
}

func (h *hasher) bytes(b []byte) { h.string(string(b)) }

// unordered folds values whose order has no meaning, such as the entries of a map.
type unordered struct{ a, b uint64 }

func (u *unordered) add(h hasher) { u.a += h.a; u.b += h.b }

func (h *hasher) set(n int, u unordered) {
	h.word(uint64(n))
	h.a = fold(h.a^u.a, 0x9e3779b97f4a7c15)
	h.b = fold(h.b^u.b, 0xd6e8feb86659fd93)
}

func (h *hasher) stringMap(m map[string]string) {
	if len(m) == 0 { // starting to iterate over a map takes time
		h.word(0)
		return
	}
	var all unordered
	for k, v := range m {
		var one hasher
		one.string(k)
		one.string(v)
		all.add(one)
	}
	h.set(len(m), all)
}

func (h *hasher) strings(list []string) {
	h.word(uint64(len(list)))
	for _, s := range list {
		h.string(s)
	}
}

// resources hashes amounts, not their spelling: 1 and 1000m CPU are equal. The common resources are
// looked up by name, which is faster than iterating over the map. more: there are other ones.
func (h *hasher) resources(list v1.ResourceList) (more bool) {
	h.word(uint64(len(list)))
	left := len(list)
	for _, name := range [2]v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		if left == 0 {
			return false
		}
		quantity, ok := list[name]
		h.bool(ok)
		if ok {
			h.amount(name, quantity)
			left--
		}
	}

	if left == 0 {
		return false
	}
	var all unordered
	for name, quantity := range list {
		if name == v1.ResourceCPU || name == v1.ResourceMemory {
			continue
		}
		var one hasher
		one.string(string(name))
		one.amount(name, quantity)
		all.add(one)
	}

	h.set(left, all)
	return true
}

// amount hashes a quantity as decisions count it, and what that rounds off: amounts are rounded
// when they have been added up, so ten containers of 100u CPU request less than ten of 1m.
func (h *hasher) amount(name v1.ResourceName, quantity resource.Quantity) {
	counted := rules.Amount(name, quantity)
	h.int(counted)

	whole := resource.NewQuantity(counted, resource.DecimalSI)
	if name == v1.ResourceCPU {
		whole = resource.NewMilliQuantity(counted, resource.DecimalSI)
	}
	if quantity.Cmp(*whole) != 0 {
		rest := quantity.DeepCopy()
		rest.Sub(*whole)
		rest.Format = resource.DecimalSI
		h.string(rest.String())
	}
}

func (h *hasher) labelSelector(s *metav1.LabelSelector) {
	h.bool(s != nil)
	if s == nil {
		return
	}
	h.stringMap(s.MatchLabels)
	h.word(uint64(len(s.MatchExpressions)))
	for i := range s.MatchExpressions {
		e := &s.MatchExpressions[i]
		h.string(e.Key)
		h.string(string(e.Operator))
		h.strings(e.Values)
	}
}

func (h *hasher) optionalString(v *string) {
	h.bool(v != nil)
	if v != nil {
		h.string(*v)
	}
}

func (h *hasher) optionalInt32(v *int32) {
	h.bool(v != nil)
	if v != nil {
		h.int(int64(*v))
	}
}
