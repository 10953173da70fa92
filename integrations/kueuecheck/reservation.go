// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package kueuecheck

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// podSetLabel is the label that Kueue sets on pods to the name of their pod set.
const podSetLabel = "kueue.x-k8s.io/podset"

// checkSet holds the names of the checks that the controller decides.
type checkSet map[kueue.AdmissionCheckReference]bool

// demand is pods with one template.
type demand struct {
	namespace, name string
	count           int
	template        v1.PodTemplateSpec
}

// demands returns the pods of an admitted workload that are not bound yet, as Kueue will create
// them: with the node labels and tolerations of their flavors, and the updates of other checks.
func demands(w *kueue.Workload, flavor func(name string) (*kueue.ResourceFlavor, error), bound map[string]int) ([]demand, error) {
	var all []demand
	for _, set := range w.Spec.PodSets {
		d := demand{namespace: w.Namespace, name: w.Name + "-" + string(set.Name), count: int(set.Count)}
		set.Template.DeepCopyInto(&d.template)
		spec := &d.template.Spec
		selector := maps.Clone(spec.NodeSelector)
		if selector == nil {
			selector = map[string]string{}
		}
		for _, assigned := range w.Status.Admission.PodSetAssignments {
			if assigned.Name != set.Name {
				continue
			}
			d.count = int(ptr.Deref(assigned.Count, set.Count))
			names := slices.Collect(maps.Values(assigned.Flavors))
			slices.Sort(names)
			for _, name := range slices.Compact(names) {
				f, err := flavor(string(name))
				if err != nil {
					return nil, err
				}
				maps.Copy(selector, f.Spec.NodeLabels)
				spec.Tolerations = append(spec.Tolerations, f.Spec.Tolerations...)
			}
		}
		for _, check := range w.Status.AdmissionChecks {
			for _, update := range check.PodSetUpdates {
				if update.Name == set.Name {
					maps.Copy(selector, update.NodeSelector)
					spec.Tolerations = append(spec.Tolerations, update.Tolerations...)
				}
			}
		}
		spec.NodeSelector = selector
		if d.count -= bound[string(set.Name)]; d.count > 0 {
			all = append(all, d)
		}
	}
	return all, nil
}

// manifest writes the pods as Jobs, which need no copy of the template per pod.
func manifest(all []demand) (string, error) {
	documents := make([]string, len(all))
	for i, d := range all {
		job := batchv1.Job{
			TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
			ObjectMeta: metav1.ObjectMeta{Namespace: d.namespace, Name: d.name},
			Spec:       batchv1.JobSpec{Parallelism: ptr.To(int32(d.count)), Completions: ptr.To(int32(d.count)), Template: d.template},
		}
		text, err := json.Marshal(job)
		if err != nil {
			return "", fmt.Errorf("encoding the pods of %s/%s: %w", d.namespace, d.name, err)
		}
		documents[i] = string(text)
	}
	return strings.Join(documents, "\n---\n"), nil
}

// stateOf returns the state of the first of the checks that the workload has.
func stateOf(w *kueue.Workload, checks checkSet) *kueue.AdmissionCheckState {
	for i := range w.Status.AdmissionChecks {
		if checks[w.Status.AdmissionChecks[i].Name] {
			return &w.Status.AdmissionChecks[i]
		}
	}
	return nil
}

// reservesQuota reports whether the workload holds quota and may still run.
func reservesQuota(w *kueue.Workload) bool {
	is := func(condition string) bool { return apimeta.IsStatusConditionTrue(w.Status.Conditions, condition) }
	return w.DeletionTimestamp == nil && ptr.Deref(w.Spec.Active, true) && w.Status.Admission != nil &&
		is(kueue.WorkloadQuotaReserved) && !is(kueue.WorkloadFinished) && !is(kueue.WorkloadEvicted)
}

// split returns the workloads that wait for a decision, the most important first, and the workloads
// with a reservation. A reservation ends hold after the decision.
func split(all []*kueue.Workload, checks checkSet, now time.Time, hold time.Duration) (waiting, reserved []*kueue.Workload) {
	for _, w := range all {
		state := stateOf(w, checks)
		switch {
		case state == nil || !reservesQuota(w):
		case state.State == kueue.CheckStatePending:
			waiting = append(waiting, w)
		case state.State == kueue.CheckStateReady && now.Sub(state.LastTransitionTime.Time) < hold:
			reserved = append(reserved, w)
		}
	}
	order := func(a, b *kueue.Workload) int {
		return cmp.Or(cmp.Compare(ptr.Deref(b.Spec.Priority, 0), ptr.Deref(a.Spec.Priority, 0)),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}
	slices.SortFunc(waiting, order)
	slices.SortFunc(reserved, order)
	return waiting, reserved
}

// backoff returns the delay of a retry, which doubles with each one.
func backoff(retries int32, least, most time.Duration) time.Duration {
	return min(least<<min(max(retries, 0), 16), most)
}
