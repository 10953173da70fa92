package eviction

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Kind is a kind of object that tells of devices.
type Kind int

// The kinds.
const (
	Claims Kind = iota
	Slices
	Rules
	kinds
)

// lists is how far a Core is with the lists of a kind.
type lists struct {
	Number  uint32 // of the current list
	Listing bool
	Listed  bool // at least once
}

// devicesKnown reports whether all kinds have been listed.
func (c *Core) devicesKnown() bool {
	return !slices.ContainsFunc(c.lists[:], func(l lists) bool { return !l.Listed || l.Listing })
}

func (c *Core) claimSeen(now time.Time, seen Claim) {
	before := c.devices.claims[seen.Name]
	c.devices.setClaim(&claim{Claim: seen, list: c.lists[Claims].Number})
	if before == nil || !reflect.DeepEqual(before.Claim, seen) {
		c.decideUsers(now, map[types.NamespacedName]bool{seen.Name: true})
	}
}

func (c *Core) claimGone(now time.Time, name types.NamespacedName) {
	c.devices.dropClaim(name)
	c.decideUsers(now, map[types.NamespacedName]bool{name: true})
}

func (c *Core) decideUsers(now time.Time, names map[types.NamespacedName]bool) {
	for _, p := range c.usersOf(names) {
		c.decidePod(now, p)
	}
}

func (c *Core) sliceSeen(now time.Time, seen Slice) {
	before := c.devices.slices[seen.Name]
	s := &slice{Slice: seen, list: c.lists[Slices].Number}
	c.holdDevices(now, s, before, c.lists[Slices].Listing)
	c.devices.setSlice(s)
	if before != nil && reflect.DeepEqual(before.Slice, seen) && reflect.DeepEqual(before.held, s.held) {
		return
	}
	names := c.devices.claimsIn(func(id Pool) bool { return id == seen.Pool || before != nil && id == before.Pool })
	c.decideUsers(now, names)
}

func (c *Core) sliceGone(now time.Time, name string) {
	if s := c.devices.slices[name]; s != nil {
		names := c.devices.claimsIn(func(id Pool) bool { return id == s.Pool })
		c.devices.dropSlice(name)
		c.decideUsers(now, names)
	}
}

// holdDevices determines since when the slice's devices have each of their taints, given how the
// slice was known before. The API server gives every taint of a device a time.
func (c *Core) holdDevices(now time.Time, s, before *slice, missed bool) {
	s.held = map[string][]Held{}
	for i := range s.Devices {
		device := &s.Devices[i]
		for _, taint := range device.Taints {
			var known []Held
			if before != nil {
				known = before.held[device.Name]
			}
			s.held[device.Name] = append(s.held[device.Name], c.holdOne(now, taint, known, missed))
		}
	}
}

// holdOne is hold for a taint of a device.
func (c *Core) holdOne(now time.Time, taint v1.Taint, known []Held, missed bool) Held {
	var said time.Time
	if !taint.TimeAdded.IsZero() && !c.breakSafeguards.noTimeAdded {
		said = taint.TimeAdded.Time
	}
	if before, had := findTaint(known, &taint); had && said.Equal(before.said) {
		before.Taint = taint
		return before
	}
	return c.newlyHeld(now, taint, said, missed)
}

func (c *Core) ruleSeen(now time.Time, seen Rule) {
	if before := c.devices.rules[seen.Name]; before != nil && before.UID != seen.UID {
		c.ruleGone(now, seen.Name)
	}
	r := c.devices.rules[seen.Name]
	var known []Held
	if r != nil {
		known = []Held{r.held}
	} else {
		r = &rule{pods: map[*pod]bool{}}
	}

	was := r.Rule
	r.Rule, r.list = seen, c.lists[Rules].Number
	if known != nil && !sayTheSame(was.Condition, seen.Condition) {
		r.tellWithin(now, statusPeriod) // another has written it, or an earlier write came late
	}
	was.Condition = seen.Condition
	if known != nil && reflect.DeepEqual(was, seen) {
		return
	}
	r.held = c.holdOne(now, seen.Taint, known, c.lists[Rules].Listing)
	r.tellAt, r.tries = now, 0
	c.devices.setRule(r)
	c.decideUsers(now, c.devices.claimsIn(func(id Pool) bool { return r.selectsPool(id) || was.selectsPool(id) }))
}

func (c *Core) ruleGone(now time.Time, name string) {
	if r := c.devices.rules[name]; r != nil {
		c.devices.dropRule(name)
		c.decideUsers(now, c.devices.claimsIn(r.selectsPool))
	}
}

func (c *Core) beginList(kind Kind) {
	c.lists[kind].Number++
	c.lists[kind].Listing = true
}

// endList removes what the list did not show.
func (c *Core) endList(now time.Time, kind Kind) {
	l := &c.lists[kind]
	l.Listing, l.Listed = false, true
	switch kind {
	case Claims:
		names := slices.SortedFunc(maps.Keys(c.devices.claims), func(a, b types.NamespacedName) int {
			return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
		})
		for _, name := range names {
			if c.devices.claims[name].list != l.Number {
				c.claimGone(now, name)
			}
		}
	case Slices:
		for _, name := range slices.Sorted(maps.Keys(c.devices.slices)) {
			if c.devices.slices[name].list != l.Number {
				c.sliceGone(now, name)
			}
		}
	case Rules:
		for _, name := range slices.Sorted(maps.Keys(c.devices.rules)) {
			if c.devices.rules[name].list != l.Number {
				c.ruleGone(now, name)
			}
		}
	}
}

// foundOf returns what an attempt has read, in the form of what watches show.
func (c *Core) foundOf(now time.Time, read *Devices) devices {
	found := newDevices()
	for i := range read.Claims {
		found.setClaim(&claim{Claim: read.Claims[i]})
	}

	for i := range read.Slices {
		s := &slice{Slice: read.Slices[i]}
		c.holdDevices(now, s, c.devices.slices[s.Name], true)
		found.setSlice(s)
	}

	for i := range read.Rules {
		r := &rule{Rule: read.Rules[i]}
		var known []Held
		if before := c.devices.rules[r.Name]; before != nil && before.UID == r.UID {
			known = []Held{before.held}
		}
		r.held = c.holdOne(now, r.Taint, known, true)
		found.setRule(r)
	}

	return found
}
