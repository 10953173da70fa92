package devices

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// version is that of the checkpoint's format.
const version = 1

// checkpoint is a ledger as it is kept on disk: who holds what, and which resources the node
// reports. Which devices there are is up to the plugins, which register again.
type checkpoint struct {
	Version   int              `json:"version"`
	Resources []string         `json:"resources"`
	Holdings  []heldCheckpoint `json:"holdings"`
}

type heldCheckpoint struct {
	Pod       types.UID          `json:"pod"`
	Container string             `json:"container"`
	Resource  string             `json:"resource"`
	Devices   []deviceCheckpoint `json:"devices"`
	Grant     *Grant             `json:"grant"`
}

type deviceCheckpoint struct {
	ID   string  `json:"id"`
	NUMA []int64 `json:"numa,omitempty"`
}

// Checkpoint is what is kept of a ledger over a restart. Devices that are reserved, and not
// granted, are not part of it: whoever asked for them is gone then.
func (l *Ledger) Checkpoint() []byte {
	out := checkpoint{Version: version, Resources: []string{}, Holdings: []heldCheckpoint{}}
	for _, name := range slices.Sorted(maps.Keys(l.resources)) {
		if !l.resources[name].expired {
			out.Resources = append(out.Resources, name)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(l.held)) {
		for _, container := range slices.Sorted(maps.Keys(l.held[uid])) {
			holdings := l.held[uid][container]
			for _, name := range slices.Sorted(maps.Keys(holdings)) {
				if h := holdings[name]; h.grant != nil {
					entry := heldCheckpoint{Pod: uid, Container: container, Resource: name, Grant: h.grant}
					for _, d := range h.devices {
						entry.Devices = append(entry.Devices, deviceCheckpoint{d.ID, d.NUMA})
					}
					out.Holdings = append(out.Holdings, entry)
				}
			}
		}
	}
	text, err := json.Marshal(out)
	if err != nil {
		panic(err) // it has nothing that cannot be written
	}
	return text
}

// Restore returns the ledger of a checkpoint. Its resources have no devices until their plugins
// register again.
func Restore(text []byte, now time.Time) (*Ledger, error) {
	var from checkpoint
	if err := json.Unmarshal(text, &from); err != nil {
		return nil, err
	}
	if from.Version != version {
		return nil, fmt.Errorf("version %d: must be %d", from.Version, version)
	}
	l := New()
	for _, name := range from.Resources {
		l.resources[name] = &resource{lost: now}
	}
	for i, entry := range from.Holdings {
		if entry.Pod == "" || entry.Container == "" || entry.Resource == "" || len(entry.Devices) == 0 || entry.Grant == nil {
			return nil, fmt.Errorf("holdings[%d]: pod, container, resource, devices and grant must be set", i)
		}
		h := &holding{grant: entry.Grant}
		for _, d := range entry.Devices {
			h.devices = append(h.devices, Device{ID: d.ID, NUMA: d.NUMA})
		}
		if l.held[entry.Pod] == nil {
			l.held[entry.Pod] = map[string]map[string]*holding{}
		}
		if l.held[entry.Pod][entry.Container] == nil {
			l.held[entry.Pod][entry.Container] = map[string]*holding{}
		}
		l.held[entry.Pod][entry.Container][entry.Resource] = h
	}
	return l, nil
}
