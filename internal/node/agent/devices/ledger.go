package devices

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Device is one that a plugin offers.
type Device struct {
	ID      string
	Healthy bool
	// NUMA are the nodes of the machine's memory that it is close to; none: unknown.
	NUMA []int64
}

// Options are what a plugin wants to be asked.
type Options struct {
	// PreStart: before each start of a container that holds its devices.
	PreStart bool
	// Preferred: which devices a container is best given.
	Preferred bool
}

// Ledger is the account of a node's devices. Its methods must not be called concurrently. Use New.
type Ledger struct {
	resources map[string]*resource
	// held are the devices of containers, by pod, container and resource.
	held map[types.UID]map[string]map[string]*holding
}

// resource is what a plugin serves.
type resource struct {
	options Options
	// devices are those of the plugin's last list, by ID.
	devices map[string]Device
	// connected: a plugin serves it now. met: one has done so since the ledger was made; before,
	// its options are unknown.
	connected, met bool
	// listed: devices are of a plugin that still serves, or of the one that it took over from.
	// Otherwise none of them counts as healthy.
	listed bool
	// lost is when the plugin went away, while none is connected.
	lost time.Time
	// expired: it has been away for longer than patience. The node reports it with nothing.
	expired bool
}

// holding is what a container holds of a resource.
type holding struct {
	devices []Device // by ID; their health is that of the time when they were given
	// grant is what the plugin answered; nil until it has.
	grant *Grant
}

// New returns a ledger without any device.
func New() *Ledger {
	return &Ledger{resources: map[string]*resource{}, held: map[types.UID]map[string]map[string]*holding{}}
}

// patience is how long the devices of a plugin that went away are part of the node's capacity.
const patience = 5 * time.Minute

// Connected records that a plugin serves the resource. Until it lists its devices, what the plugin
// before it listed is unchanged.
func (l *Ledger) Connected(name string, options Options) {
	r := l.resources[name]
	if r == nil {
		r = &resource{}
		l.resources[name] = r
	}
	r.options, r.connected, r.met, r.lost, r.expired = options, true, true, time.Time{}, false
}

// Listed records the devices that a connected plugin has. Of two with the same ID the last one
// counts. It reports whether anything has changed.
func (l *Ledger) Listed(name string, list []Device) bool {
	r := l.resources[name]
	if r == nil || !r.connected {
		return false
	}
	devices := make(map[string]Device, len(list))
	for _, d := range list {
		devices[d.ID] = d
	}
	same := r.listed && maps.EqualFunc(r.devices, devices, func(a, b Device) bool {
		return a.Healthy == b.Healthy && slices.Equal(a.NUMA, b.NUMA)
	})
	r.devices, r.listed = devices, true
	return !same
}

// Lost records that the plugin has gone away.
func (l *Ledger) Lost(name string, at time.Time) {
	if r := l.resources[name]; r != nil && r.connected {
		r.connected, r.listed, r.lost = false, false, at
	}
}

// Expire forgets the devices of plugins that have been away for too long.
func (l *Ledger) Expire(now time.Time) {
	for _, r := range l.resources {
		if !r.connected && now.Sub(r.lost) > patience {
			r.expired, r.devices = true, nil
		}
	}
}

// healthy are the devices of a resource that can be given to containers.
func (l *Ledger) healthy(name string) set {
	out := set{}
	if r := l.resources[name]; r != nil && r.listed {
		for id, d := range r.devices {
			if d.Healthy {
				out[id] = true
			}
		}
	}
	return out
}

// available are the healthy devices of a resource that nobody holds.
func (l *Ledger) available(name string) set {
	out, inUse := l.healthy(name), l.inUse(name)
	maps.DeleteFunc(out, func(id string, _ bool) bool { return inUse[id] })
	return out
}

// Count is how many devices a resource has, and how many of them are healthy.
type Count struct{ All, Healthy int }

// Counts are those of every resource. One whose plugin has been away for too long counts nothing:
// unlike one that no plugin has ever served, it is known to be the node's to report.
func (l *Ledger) Counts() map[string]Count {
	out := map[string]Count{}
	for name, r := range l.resources {
		out[name] = Count{len(r.devices), len(l.healthy(name))}
	}
	return out
}

// served reports whether a container that requests the resource gets devices of a plugin: one that
// is registered, or has been until a while ago, or whose devices somebody holds.
func (l *Ledger) served(name string) bool {
	if r := l.resources[name]; r != nil && !r.expired {
		return true
	}
	return len(l.inUse(name)) > 0
}

// inUse are the devices that containers hold.
func (l *Ledger) inUse(name string) set {
	out := set{}
	for _, containers := range l.held {
		for _, resources := range containers {
			if h := resources[name]; h != nil {
				for _, d := range h.devices {
					out[d.ID] = true
				}
			}
		}
	}
	return out
}

// Cover raises amounts to what containers hold, so that a pod that holds devices fits on a node
// whose plugin is away.
func (l *Ledger) Cover(amounts v1.ResourceList) {
	names := set{}
	for _, containers := range l.held {
		for _, resources := range containers {
			for name := range resources {
				names[name] = true
			}
		}
	}
	for name := range names {
		held := int64(len(l.inUse(name)))
		if have := amounts[v1.ResourceName(name)]; have.Value() < held {
			amounts[v1.ResourceName(name)] = quantity(held)
		}
	}
}

// Holders are the pods that hold devices; with a resource, those that hold devices of it.
func (l *Ledger) Holders(name string) []types.UID {
	var out []types.UID
	for uid, containers := range l.held {
		for _, resources := range containers {
			if name == "" || resources[name] != nil {
				out = append(out, uid)
				break
			}
		}
	}
	slices.Sort(out)
	return out
}

// Free takes everything from a pod. It reports whether there was anything.
func (l *Ledger) Free(uid types.UID) bool {
	_, had := l.held[uid]
	delete(l.held, uid)
	return had
}

// set is one of device IDs, or of names of resources.
type set map[string]bool

func (s set) sorted() []string { return slices.Sorted(maps.Keys(s)) }

func (s set) add(devices []Device) {
	for _, d := range devices {
		s[d.ID] = true
	}
}
