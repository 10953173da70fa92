// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// This file removes the parts of objects that journals omit: potential secrets, and large fields
// that do not affect decisions. It must keep every input of decisions. Otherwise, a replay would
// decide differently.

// Stripped returns an object in the form recorded by journals, or the object itself if its kind is
// not recorded. A core that may be rebuilt from its journal must get stripped objects from the
// beginning, so that the omitted parts make no difference later. For example, the class of a pod
// with device claims depends on a hash of the pod's status. A core given the whole status would
// compute a different class than a core given the stripped status.
func Stripped(o metav1.Object) metav1.Object {
	if full, ok := o.(object); ok {
		return stripObject(full)
	}
	return o
}

// stripObject returns an object without potential secrets that do not matter to decisions. The
// object itself is not changed. The result may share parts with the object, and must not be changed
// either.
func stripObject(o object) object {
	switch o := o.(type) {
	case *v1.Pod:
		return strippedPod(o)
	// Common or large kinds are copied shallowly, since strippedOther makes a deep copy.
	case *v1.Node:
		n := *o
		n.ObjectMeta = strippedMeta(n.ObjectMeta)
		return &n
	case *v1.Service:
		s := *o
		s.ObjectMeta = strippedMeta(s.ObjectMeta)
		return &s
	case *v1.Namespace:
		n := *o
		n.ObjectMeta = strippedMeta(n.ObjectMeta)
		return &n
	case *storagev1.StorageClass:
		c := *o
		c.Parameters = hashedValues(c.Parameters)
		return strippedOther(&c)
	case *v1.PersistentVolume:
		v := *o
		v.Spec.PersistentVolumeSource = strippedSource(v.Spec.PersistentVolumeSource)
		return strippedOther(&v)
	case *storagev1.VolumeAttachment:
		a := *o
		if inline := a.Spec.Source.InlineVolumeSpec; inline != nil {
			spec := *inline
			spec.PersistentVolumeSource = strippedSource(spec.PersistentVolumeSource)
			a.Spec.Source.InlineVolumeSpec = &spec
		}
		a.Status.AttachmentMetadata = hashedValues(a.Status.AttachmentMetadata)
		return strippedOther(&a)
	case *appsv1.StatefulSet:
		s := *o
		s.Spec.VolumeClaimTemplates = nil // decisions use the claims made from the templates
		return strippedOther(&s)
	}
	return strippedOther(o)
}

// strippedOther returns an object without managed fields and pod template, and with hashed
// annotations. A pod template makes up most of a workload object, and can hold secrets in
// environment variables.
func strippedOther(o object) object {
	_, templated := templateOf(o)
	// Most objects have nothing to strip, and are not copied.
	if !templated && len(o.GetManagedFields()) == 0 && len(o.GetAnnotations()) == 0 {
		return o
	}
	other := o.(runtime.Object).DeepCopyObject().(object)
	other.SetManagedFields(nil)
	other.SetAnnotations(strippedAnnotations(other.GetAnnotations()))
	if template, ok := templateOf(other); ok {
		*template = v1.PodTemplateSpec{} // decisions use selectors
	}
	return other
}

// readAnnotations holds the annotations used by decisions. The annotations read by a plugin must be
// listed here, or the plugin would see hashes whenever a journal is written.
var readAnnotations = map[string]bool{
	v1.BetaStorageClassAnnotation: true, v1.MigratedPluginsAnnotationKey: true, cycle.MoveReservationAnnotation: true,
	resourcev1.ExtendedResourceClaimAnnotation: true, cycle.MinRunTimeAnnotation: true,
	"pv.kubernetes.io/bind-completed": true, "pv.kubernetes.io/bound-by-controller": true,
	"volume.kubernetes.io/selected-node": true,
}

// strippedAnnotations hashes all values except those used by decisions.
func strippedAnnotations(m map[string]string) map[string]string {
	hashes := hashedValues(m)
	for key := range hashes {
		if readAnnotations[key] {
			hashes[key] = m[key]
		}
	}
	return hashes
}

// Restored returns the annotations to write for an object with possibly hashed annotations:
// current, the annotations in the API, overwritten with those of the object. A hash does not
// overwrite a current value.
func Restored(annotations, current map[string]string) map[string]string {
	all := maps.Clone(current)
	for key, value := range annotations {
		if _, has := current[key]; has && isHash(value) {
			continue
		}
		if all == nil {
			all = map[string]string{}
		}
		all[key] = value
	}
	return all
}

// strippedSource hashes a volume's parameters for its driver. Keys stay, because only values may be
// secret. References to Secrets also stay, because they are only names.
func strippedSource(source v1.PersistentVolumeSource) v1.PersistentVolumeSource {
	if source.CSI != nil {
		source.CSI = new(*source.CSI)
		source.CSI.VolumeAttributes = hashedValues(source.CSI.VolumeAttributes)
	}
	if source.FlexVolume != nil {
		source.FlexVolume = new(*source.FlexVolume)
		source.FlexVolume.Options = hashedValues(source.FlexVolume.Options)
	}
	return source
}

// templateOf returns the pod template of a workload.
func templateOf(o object) (*v1.PodTemplateSpec, bool) {
	switch o := o.(type) {
	case *appsv1.ReplicaSet:
		return &o.Spec.Template, true
	case *appsv1.StatefulSet:
		return &o.Spec.Template, true
	case *v1.ReplicationController:
		return o.Spec.Template, o.Spec.Template != nil
	}
	return nil, false
}

// strippedMeta drops managed fields, and hashes annotations.
func strippedMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	m.ManagedFields = nil
	m.Annotations = strippedAnnotations(m.Annotations)
	return m
}

// hashedValues hashes the values of a map, which is not changed.
func hashedValues(m map[string]string) map[string]string {
	if len(m) == 0 {
		return m
	}
	hashes := make(map[string]string, len(m))
	for key, value := range m {
		hashes[key] = hashValue(value)
	}
	return hashes
}

// A hash consists of hashMark and hashSize bytes in hex digits. It is short: it only needs to
// reveal that a value has changed.
const (
	hashMark = "hash:"
	hashSize = 8
)

// hasher replaces values by hashes that depend on a key. Without the key, a journal does not reveal
// whether a guess of a short value is right.
type hasher struct{ key [sha256.Size]byte }

// newHasher returns a hasher with a new key.
func newHasher() *hasher {
	h := &hasher{}
	_, _ = rand.Read(h.key[:]) // it does not fail
	return h
}

// hashes is the hasher of the process. Its key is never written. All journals share it, since an
// object may be stripped for the core before a journal records it. Replays compute no hashes: they
// read them from the journal.
var hashes = newHasher()

// hashValue returns the hash of a value.
func (h *hasher) hashValue(value string) string {
	mac := hmac.New(sha256.New, h.key[:])
	_, _ = mac.Write([]byte(value))
	return hashMark + hex.EncodeToString(mac.Sum(nil)[:hashSize])
}

// hashValue replaces a value by a hash, so that its changes remain visible while the process runs.
// A hash is returned unchanged: an object may be stripped twice.
func hashValue(value string) string {
	if isHash(value) {
		return value
	}
	return hashes.hashValue(value)
}

// isHash reports whether a value looks like a result of hashValue.
func isHash(value string) bool {
	digits, ok := strings.CutPrefix(value, hashMark)
	return ok && len(digits) == 2*hashSize
}

// strippedPod keeps the fields of a pod read by class digests and rules; see package cluster.
func strippedPod(pod *v1.Pod) *v1.Pod {
	p := *pod
	p.ObjectMeta = strippedMeta(p.ObjectMeta)
	p.Spec.Containers, p.Spec.InitContainers = strippedContainers(p.Spec.Containers), strippedContainers(p.Spec.InitContainers)
	p.Spec.EphemeralContainers = nil
	p.Spec.Volumes = strippedVolumes(p.Spec.Volumes)
	whole := len(p.Spec.ResourceClaims) > 0 // in this case, the whole status is part of the class
	p.Status.ContainerStatuses = strippedStatuses(p.Status.ContainerStatuses, whole)
	p.Status.InitContainerStatuses = strippedStatuses(p.Status.InitContainerStatuses, whole)
	p.Status.EphemeralContainerStatuses = nil
	return &p
}

// strippedVolumes hashes the parameters for the drivers of a pod's inline volumes, and the
// annotations in projected volumes and claim templates.
func strippedVolumes(list []v1.Volume) []v1.Volume {
	// Most pods lack such volumes, and keep their list.
	opaque := func(v v1.Volume) bool {
		return v.CSI != nil || v.FlexVolume != nil || v.Projected != nil || v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil
	}
	if !slices.ContainsFunc(list, opaque) {
		return list
	}

	all := slices.Clone(list)
	for i := range all {
		if csi := all[i].CSI; csi != nil {
			all[i].CSI = new(*csi)
			all[i].CSI.VolumeAttributes = hashedValues(csi.VolumeAttributes)
		}
		if flex := all[i].FlexVolume; flex != nil {
			all[i].FlexVolume = new(*flex)
			all[i].FlexVolume.Options = hashedValues(flex.Options)
		}
		if projected := all[i].Projected; projected != nil {
			all[i].Projected = strippedProjection(projected)
		}
		if ephemeral := all[i].Ephemeral; ephemeral != nil && ephemeral.VolumeClaimTemplate != nil {
			one := *ephemeral.VolumeClaimTemplate
			one.ObjectMeta = strippedMeta(one.ObjectMeta)
			all[i].Ephemeral = &v1.EphemeralVolumeSource{VolumeClaimTemplate: &one}
		}
	}

	return all
}

// strippedProjection hashes the annotations that a projected volume passes to signers of
// certificates.
func strippedProjection(p *v1.ProjectedVolumeSource) *v1.ProjectedVolumeSource {
	one := *p
	one.Sources = slices.Clone(p.Sources)
	for i, source := range one.Sources {
		if source.PodCertificate != nil {
			one.Sources[i].PodCertificate = new(*source.PodCertificate)
			one.Sources[i].PodCertificate.UserAnnotations = hashedValues(source.PodCertificate.UserAnnotations)
		}
	}
	return &one
}

// strippedStatuses keeps the amounts resized in place, which decisions use. If whole is set, the
// ContainerID is replaced by a hash of the entire status, so that any change of the status still
// changes the class of the pod.
func strippedStatuses(list []v1.ContainerStatus, whole bool) []v1.ContainerStatus {
	if len(list) == 0 {
		return list
	}
	all := make([]v1.ContainerStatus, len(list))
	for i, s := range list {
		all[i] = v1.ContainerStatus{Name: s.Name, Resources: s.Resources, AllocatedResources: s.AllocatedResources}
		// The status was stripped before, and its hash covers the omitted parts.
		if strings.HasPrefix(s.ContainerID, hashMark) {
			all[i].ContainerID = s.ContainerID
		} else if bytes, err := s.Marshal(); whole && err == nil {
			all[i].ContainerID = hashValue(string(bytes))
		}
	}
	return all
}

// strippedContainers drops environments, commands, arguments, probes and hooks.
func strippedContainers(list []v1.Container) []v1.Container {
	if len(list) == 0 {
		return list
	}
	all := make([]v1.Container, len(list))
	for i, c := range list {
		c.Env, c.EnvFrom, c.Command, c.Args = nil, nil, nil, nil
		c.LivenessProbe, c.ReadinessProbe, c.StartupProbe, c.Lifecycle = nil, nil, nil, nil
		c.TerminationMessagePath, c.WorkingDir = "", ""
		all[i] = c
	}
	return all
}
