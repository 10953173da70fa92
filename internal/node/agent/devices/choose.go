package devices

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// Want is how many devices of a resource a container requests.
type Want struct {
	Resource string
	Count    int
}

// Wants are a container's, by name of the resource, among those that plugins serve. Extended
// resources cannot be overcommitted, so limits are requests.
func (l *Ledger) Wants(c *v1.Container) []Want { return l.wants(c.Resources.Limits) }

func (l *Ledger) wants(limits v1.ResourceList) []Want {
	var out []Want
	for name, amount := range limits {
		if n := amount.Value(); n > 0 && l.served(string(name)) {
			out = append(out, Want{string(name), int(n)})
		}
	}
	slices.SortFunc(out, func(a, b Want) int {
		if a.Resource < b.Resource {
			return -1
		}
		return 1 // no two have the same
	})
	return out
}

// Has reports whether a container holds what it wants of a resource. A holding of another size is
// an error: requests for devices do not change.
func (l *Ledger) Has(uid types.UID, container string, want Want) (bool, error) {
	h := l.held[uid][container][want.Resource]
	if h == nil {
		return false, nil
	}
	if len(h.devices) != want.Count {
		return false, fmt.Errorf("pod %q container %q changed request for resource %q from %d to %d",
			uid, container, want.Resource, len(h.devices), want.Count)
	}
	return true, nil
}

// Plan is what a container can be given of a resource.
type Plan struct {
	// Fixed are part of any choice: devices of its pod's init containers and, if all devices near
	// the wanted NUMA nodes are needed, these.
	Fixed []string
	// Free are healthy devices that nobody holds, of which it needs Missing besides Fixed, best
	// ones first.
	Free    []string
	Missing int
	// Ask: the plugin wants to be asked which of Free are best.
	Ask bool
}

// Plan returns what a container, which holds nothing of the resource yet, can be given, near these
// NUMA nodes as far as possible; no nodes: anywhere. An error if there is too little.
func (l *Ledger) Plan(pod *v1.Pod, container string, want Want, near topology.Nodes) (Plan, error) {
	r := l.resources[want.Resource]
	if r == nil || r.expired {
		return Plan{}, fmt.Errorf("cannot allocate unregistered device %s", want.Resource)
	}
	healthy := l.healthy(want.Resource)
	if len(healthy) == 0 {
		return Plan{}, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", want.Resource)
	}
	p := Plan{Missing: want.Count}
	for _, id := range l.reusable(pod, container, want.Resource).sorted() {
		if p.Missing > 0 && healthy[id] {
			p.Fixed = append(p.Fixed, id)
			p.Missing--
		}
	}
	if p.Missing == 0 {
		return p, nil
	}
	available := l.available(want.Resource).sorted()
	if len(available) < p.Missing {
		return Plan{}, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", want.Resource, p.Missing, len(available))
	}
	aligned, others := split(r.devices, available, near)
	if p.Missing < len(aligned) {
		p.Free = aligned
	} else {
		p.Fixed, p.Free, p.Missing = append(p.Fixed, aligned...), others, p.Missing-len(aligned)
	}
	p.Ask = r.options.Preferred && p.Missing > 0
	return p, nil
}

// split returns which devices are close to one of these NUMA nodes, and the others, at the end
// those of which it is not known where they are. No nodes: none is close, and the order stays.
func split(devices map[string]Device, ids []string, near topology.Nodes) (aligned, others []string) {
	var anywhere []string
	for _, id := range ids {
		switch d := devices[id]; {
		case d.at(near):
			aligned = append(aligned, id)
		case near != 0 && len(d.NUMA) == 0:
			anywhere = append(anywhere, id)
		default:
			others = append(others, id)
		}
	}
	return aligned, append(others, anywhere...)
}

// reusable are the devices of init containers that have ended when this container starts, and that
// no container that starts before it keeps: sidecars and regular containers do.
func (l *Ledger) reusable(pod *v1.Pod, container, name string) set {
	out := set{}
	pass := func(c *v1.Container, ends bool) {
		if h := l.held[pod.UID][c.Name][name]; h != nil {
			for _, d := range h.devices {
				if ends {
					out[d.ID] = true
				} else {
					delete(out, d.ID)
				}
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name == container {
			return out
		}
		pass(c, c.RestartPolicy == nil || *c.RestartPolicy != v1.ContainerRestartPolicyAlways)
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if c.Name == container {
			return out
		}
		pass(c, false)
	}
	return out
}

// Reserve gives a container devices, those that the plugin prefers first, and returns their IDs.
// Until they are granted nobody else gets them. It plans again: others may have been given devices
// while the plugin was asked.
func (l *Ledger) Reserve(pod *v1.Pod, container string, want Want, near topology.Nodes, preferred []string) ([]string, error) {
	p, err := l.Plan(pod, container, want, near)
	if err != nil {
		return nil, err
	}
	chosen := set{}
	for _, id := range p.Fixed {
		chosen[id] = true
	}
	for _, list := range [][]string{preferred, p.Free} {
		for _, id := range list {
			if len(chosen) < want.Count && slices.Contains(p.Free, id) {
				chosen[id] = true
			}
		}
	}
	h := &holding{}
	for _, id := range chosen.sorted() {
		h.devices = append(h.devices, l.resources[want.Resource].devices[id])
	}
	containers := l.held[pod.UID]
	if containers == nil {
		containers = map[string]map[string]*holding{}
		l.held[pod.UID] = containers
	}
	if containers[container] == nil {
		containers[container] = map[string]*holding{}
	}
	containers[container][want.Resource] = h
	return chosen.sorted(), nil
}

// Granted records the plugin's answer about reserved devices. It reports whether the container
// still holds them.
func (l *Ledger) Granted(uid types.UID, container, name string, grant Grant) bool {
	h := l.held[uid][container][name]
	if h == nil {
		return false
	}
	h.grant = &grant
	return true
}

// Refused takes back devices that were reserved, and that the plugin did not grant.
func (l *Ledger) Refused(uid types.UID, container, name string) {
	h := l.held[uid][container][name]
	if h == nil || h.grant != nil {
		return
	}
	delete(l.held[uid][container], name)
	if len(l.held[uid][container]) == 0 {
		delete(l.held[uid], container)
	}
	if len(l.held[uid]) == 0 {
		delete(l.held, uid)
	}
}

// PreStart returns the devices that a plugin is to prepare before a container that holds them
// starts; none if it does not want to. An error if that is not known or the plugin cannot do it
// now.
func (l *Ledger) PreStart(uid types.UID, container, name string) ([]string, error) {
	r := l.resources[name]
	switch {
	case r == nil || r.expired:
		return nil, fmt.Errorf("endpoint not found in cache for a registered resource: %s", name)
	case !r.met:
		return nil, fmt.Errorf("the device plugin of %s has not registered since the node agent started", name)
	case !r.options.PreStart:
		return nil, nil
	case !r.connected:
		return nil, fmt.Errorf("the device plugin of %s has gone away, and is to prepare the devices before the container starts", name)
	}
	h := l.held[uid][container][name]
	if h == nil {
		return nil, fmt.Errorf("no devices found allocated in local cache for pod %s, container %s, resource %s", uid, container, name)
	}
	return ids(h.devices), nil
}

func ids(devices []Device) []string {
	out := make([]string, len(devices))
	for i, d := range devices {
		out[i] = d.ID
	}
	return out
}
