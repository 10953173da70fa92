// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package claimcontrollers

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Name generates the name of a pod. Like the API server, it appends five letters of the API
// server's alphabet to base, but the same seed always gives the same letters. It avoids names
// already taken.
func Name(namespace, base string, seed any, taken func(name string) bool) string {
	const alphabet, suffix = "bcdfghjklmnpqrstvwxz2456789", 5
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s#%v", namespace, base, seed)
	for {
		name := []byte(base)
		for sum := h.Sum64(); len(name) < len(base)+suffix; sum /= uint64(len(alphabet)) {
			name = append(name, alphabet[sum%uint64(len(alphabet))])
		}
		if !taken(string(name)) {
			return string(name)
		}
		h.Write([]byte{'+'}) // otherwise some of thousands of pods would have the same name
	}
}

// BaseOf returns the beginning of the names of a controller's pods: the generateName of an existing
// pod, or the controller's name and a dash.
func BaseOf(p *v1.Pod, owner *metav1.OwnerReference) string {
	return cmp.Or(p.GenerateName, owner.Name+"-")
}

// longestGrace bounds grace periods. Some grace periods have more seconds than a Duration holds,
// and would become negative by overflow.
const longestGrace = 10 * 365 * 24 * time.Hour

// GraceOf returns the time a pod takes to terminate. This is its whole grace period, 30 seconds by
// default, because an earlier end cannot be predicted.
func GraceOf(p *v1.Pod) time.Duration {
	seconds := ptr.Deref(p.Spec.TerminationGracePeriodSeconds, v1.DefaultTerminationGracePeriodSeconds)
	return time.Duration(min(seconds, int64(longestGrace/time.Second))) * time.Second
}
