// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// Evict requests the eviction of pods of one namespace from the Eviction API. Each pod is tried
// once, in the given order, because an allowed eviction may use up the budget for the next.
type Evict struct {
	Pods      []string `json:"pods"`
	Namespace string   `json:"namespace,omitempty"`
}

// Evicted is the Eviction API's result for one pod. Either Refused is set, or the pod was evicted.
type Evicted struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Node      string `json:"node"`
	// Budget is the pod's budget, with Left disruptions allowed after the eviction.
	Budget string `json:"budget,omitempty"`
	Left   int32  `json:"left"`
	// Refused is the reason the pod was not evicted.
	Refused string `json:"refused,omitempty"`
	// Room lists the pods placed on the node afterwards: pending pods, or the evicted pod's
	// successor. Callers fill it in once time has passed.
	Room []string `json:"room,omitempty"`
}

// evictPods carries out an Evict. Pods that hold no room or are already terminating are deleted
// instead, because the API server ignores their budgets. Static pods stay.
func (o *operations) evictPods(op *Evict) (*Done, error) {
	done, namespace := &Done{}, cmp.Or(op.Namespace, v1.NamespaceDefault)
	for _, name := range op.Pods {
		p := o.pods.named[Name{namespace, name}]
		switch {
		case p == nil:
			return nil, fmt.Errorf("there is no pod %s/%s", namespace, name)
		case p.Pod == nil || p.Terminating || rules.IsTerminal(p.object) || p.NodeName == "" || isMirror(p.object): // like the API server
			if deleted, err := o.controllers.deleteNamed(&Delete{Object: "pod/" + name, Namespace: namespace}); err == nil {
				done.Notes = append(done.Notes, deleted.Notes...)
			}
			continue
		}

		verdict, class := o.budgets.mayEvict(p), p.Class
		e := Evicted{Namespace: namespace, Name: name, Node: p.NodeName, Refused: verdict.Message}
		if verdict.Answer == disruption.Allowed {
			o.controllers.departPod(p, ByEviction, "")
		}
		// Read Left after the departure, so it reflects the new status. With several budgets, no
		// eviction is allowed; the last budget is shown.
		for _, b := range o.budgets.budgetsOf(class) {
			e.Budget, e.Left = b.Name, b.Status.DisruptionsAllowed
		}
		done.Evicted = append(done.Evicted, e)
	}
	return done, nil
}
