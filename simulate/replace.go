package simulate

import (
	"fmt"
	"hash/fnv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// replace has the pod's controller make another one in its place, if it has a controller and time passes for it to do so.
func (w *world) replace(p *pod) {
	if w.options.For == 0 || p.object == nil {
		return
	}
	owner := metav1.GetControllerOf(p.object)
	if owner == nil || owner.Kind == "Node" { // a bare pod, or one that its node makes
		return
	}
	next := p.object.DeepCopy()
	next.Spec.NodeName = ""
	next.Status = v1.PodStatus{Phase: v1.PodPending, QOSClass: p.object.Status.QOSClass}
	next.ResourceVersion, next.DeletionTimestamp = "", nil
	next.CreationTimestamp = metav1.NewTime(w.start.Add(w.now))
	next.UID = types.UID(fmt.Sprintf("%s-%d", owner.UID, w.entered+1))
	if owner.Kind != "StatefulSet" {
		next.Name = w.nameFor(next, owner)
	}
	w.claims(next)
	w.enter(next, "")
}

// nameFor makes up a name as the API server would, the same every time.
func (w *world) nameFor(p *v1.Pod, owner *metav1.OwnerReference) string {
	const alphabet, suffix = "bcdfghjklmnpqrstvwxz2456789", 5
	base := p.GenerateName
	if base == "" {
		base = owner.Name + "-"
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s#%d", p.Namespace, base, w.entered+1)
	var name strings.Builder
	name.WriteString(base)
	for sum := h.Sum64(); name.Len() < len(base)+suffix; sum /= uint64(len(alphabet)) {
		name.WriteByte(alphabet[sum%uint64(len(alphabet))])
	}
	return name.String()
}

// settle tries what waits until nothing changes any more. A pod that has to go on waiting is not listed again.
func (w *world) settle() {
	for {
		before := len(w.said.Pods)
		log := w.c.Log.Len()
		pods := append(w.waiting, w.created...)
		w.waiting, w.created = nil, nil
		w.schedule(pods)
		if log == w.c.Log.Len() && before == len(w.said.Pods) && len(w.created) == 0 {
			return
		}
	}
}
