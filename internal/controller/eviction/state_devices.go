// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// saveState returns the known state of devices as plain data.
func (d *devices) saveState() (s DevicesState) {
	byName := func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }
	// Objects are sorted by name, so that equal states have the same encoding.
	for _, name := range slices.SortedFunc(maps.Keys(d.claims), byName) {
		s.Claims = append(s.Claims, ClaimState{d.claims[name].Claim, d.claims[name].list})
	}

	for _, name := range slices.Sorted(maps.Keys(d.slices)) {
		of := d.slices[name]
		saved := SliceState{Slice: of.Slice, List: of.list}
		for i := range of.Devices {
			saved.Held = append(saved.Held, saveHeld(of.held[of.Devices[i].Name]))
		}
		s.Slices = append(s.Slices, saved)
	}

	for _, r := range d.sorted {
		s.Rules = append(s.Rules, RuleState{
			Rule: r.Rule, List: r.list, Held: saveHeld([]Held{r.held})[0], Evicted: r.evicted, TellAt: r.statusDue, Tries: r.tries,
		})
	}
	return s
}

// restoreDevices is the counterpart of saveState. The pods evicted by a rule are not saved, because
// they follow from the rest.
func restoreDevices(s DevicesState) devices {
	d := newDevices()
	for i := range s.Claims {
		d.setClaim(&claim{s.Claims[i].Claim, s.Claims[i].List})
	}

	for i := range s.Slices {
		saved := &s.Slices[i]
		of := &slice{Slice: saved.Slice, list: saved.List, held: map[string][]Held{}}
		// saved.Held is parallel to Devices.
		for j, held := range saved.Held {
			of.held[of.Devices[j].Name] = restoreHeld(held)
		}
		d.setSlice(of)
	}

	for i := range s.Rules {
		saved := &s.Rules[i]
		d.setRule(&rule{
			Rule: saved.Rule, list: saved.List, held: restoreHeld([]HeldState{saved.Held})[0], evicted: saved.Evicted,
			statusDue: saved.TellAt, tries: saved.Tries, pods: map[*pod]bool{},
		})
	}
	return d
}

// saveDevices adds the Core's device state to its saved state.
func (c *Core) saveDevices(s *Knowledge) {
	s.Devices, s.Lists = c.devices.seen.saveState(), c.devices.lists
	for _, ticket := range slices.Sorted(maps.Keys(c.statuses.written)) {
		r := c.statuses.written[ticket]
		saved := StatusWriteState{Ticket: ticket}
		if c.devices.seen.rules[r.Name] == r {
			saved.Rule = r.Name
		}
		s.Telling = append(s.Telling, saved)
	}
}

// restoreDevices is the counterpart of saveDevices. Deadlines are recomputed from the state.
func (c *Core) restoreDevices(s *Knowledge) {
	c.devices.seen, c.devices.lists = restoreDevices(s.Devices), s.Lists
	for _, p := range c.mirror.pods {
		// judgePod also sets byNode and byDevice, which are not saved.
		p.asked = c.judgePod(p)
		for _, name := range p.asked {
			c.devices.seen.rules[name].pods[p] = true
		}
	}
	// A rule deleted since the write is represented by an empty rule, on which the response has no
	// effect.
	for _, saved := range s.Telling {
		r := c.devices.seen.rules[saved.Rule]
		if r == nil {
			r = &rule{}
		}
		r.statusInFlight = true
		c.statuses.written[saved.Ticket] = r
	}
}
