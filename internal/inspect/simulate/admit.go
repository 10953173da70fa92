package simulate

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// How the pods of manifests enter the world. What an API server has stored is taken as it is;
// all other pods go through admission, which fills in defaults, priority and overhead, or
// refuses them.

// existsAlready reports whether a pod of the input exists: it is bound, or an API server has
// stored it. Others are new, and quotas may refuse them.
func existsAlready(p *v1.Pod) bool { return p.Spec.NodeName != "" || admission.Stored(p) }

// chargeExisting counts the pods that exist against the quotas, before new ones are: in the input
// they may stand behind the controller that makes the new ones.
func (s *pods) chargeExisting(list []*v1.Pod) {
	for _, p := range list {
		if existsAlready(p) && len(s.bounds.quotas[p.Namespace]) > 0 {
			if admitted, err := s.admitPod(p); err == nil { // else admitAll reports it
				s.bounds.chargePod(admitted, false)
			}
		}
	}
}

// admitAll admits the set's pods as an API server would, or has already. Each pod is admitted
// independently of the others, so this is done in parallel, some pods ahead of those that
// enter. They enter in the order of the set, on one goroutine: quotas depend on the order.
//
//	ready  |--admit--|--enter--|         |--enter--|
//	next             |--admit--|--wait---|--admit--|
func (s *pods) admitAll(set *manifest.Set, discard bool, allowed *allowed) error {
	s.chargeExisting(set.Pods)
	ready, next := newBatch(), newBatch()
	ready.begin(s, set.Pods, 0)
	for first := 0; first < len(set.Pods); first += admittedAtATime {
		ready.Wait()
		// On other goroutines, while this one has the pods of ready enter. The two batches
		// then change places.
		next.begin(s, set.Pods, first+admittedAtATime)
		err := s.enterBatch(set, first, ready, discard)
		if err == nil && allowed.mustStop() {
			err = allowed.ended
		}
		if err != nil {
			// No goroutine may be left that reads the set.
			next.Wait()
			return err
		}
		ready, next = next, ready
	}
	return nil
}

// batch is so many pods as are admitted at a time. Its slices are reused. Results are written
// by the workers, each at the indexes that are its own, and read after Wait.
type batch struct {
	sync.WaitGroup
	pods     []*v1.Pod // as given
	admitted []*v1.Pod
	errs     []error
}

// newBatch returns a batch without pods.
func newBatch() *batch {
	return &batch{admitted: make([]*v1.Pod, admittedAtATime), errs: make([]error, admittedAtATime)}
}

// begin begins to admit the pods from the first one on; fewer at the end of the list, or
// none. The batch must not be used until Wait has returned.
func (b *batch) begin(s *pods, all []*v1.Pod, first int) {
	b.pods = all[min(first, len(all)):min(first+admittedAtATime, len(all))]
	n := runtime.GOMAXPROCS(0)
	for worker := range n {
		b.Go(func() {
			for i := worker; i < len(b.pods); i += n {
				b.admitted[i], b.errs[i] = s.admitPod(b.pods[i])
			}
		})
	}
}

// enterBatch adds the pods of a batch, of which the first has a number in the set. The first
// refusal ends it, except for a controller's pod in a whole cluster: that its creation fails
// is a state that real clusters are in.
func (s *pods) enterBatch(set *manifest.Set, first int, b *batch, discard bool) error {
	for i, pod := range b.pods {
		if b.errs[i] != nil && set.Whole && metav1.GetControllerOf(pod) != nil {
			continue // as its controller, which is refused again and again; see shortfalls.refusalOf
		}
		if b.errs[i] != nil {
			return refusalError(set, first+i, b.errs[i])
		}
		refused := ""
		if !existsAlready(pod) {
			s.claims.MakeFor(b.admitted[i])
			refused = s.bounds.chargePod(b.admitted[i], true)
		}
		s.enterPod(b.admitted[i], refused)
		if discard {
			b.pods[i] = nil
		}
	}
	return nil
}

// refusalError returns why a pod is refused, and where it stands in the manifests: that of
// its workload's template, if it was expanded.
func refusalError(set *manifest.Set, i int, err error) error {
	file, line := set.PodAt(i)
	e := &manifest.Error{File: file, Line: line, Text: fmt.Sprintf("pod %s/%s: %v", set.Pods[i].Namespace, set.Pods[i].Name, err)}
	var refused *admission.Refusal
	if errors.As(err, &refused) {
		e.Field = refused.Field
	}
	return e
}

// admittedAtATime bounds how many pods are in memory twice, as given and as admitted: there
// are two batches of them. A batch is large enough that starting its workers costs nothing in
// comparison.
const admittedAtATime = 2048

// readmitPod admits a pod that an API server has stored. One with a resourceVersion is as that
// server has admitted it, whatever its rules were. A manifest that has a UID only, and lacks what
// admission writes, still gets it. A refusal is ignored: other rules may have applied when the pod
// was created.
func (s *pods) readmitPod(p *v1.Pod) *v1.Pod {
	if p.Spec.NodeName == "" && p.ResourceVersion == "" {
		if again, err := admission.Create(s.admission, s.catalog, p); err == nil {
			return again
		}
	}
	p = p.DeepCopy()
	admission.Default(p)
	return p
}

// admitPod admits a pod as an API server would, or has already. It returns a copy; the given
// pod is not changed. It is called by several goroutines at a time, and only reads what it
// shares.
func (s *pods) admitPod(p *v1.Pod) (*v1.Pod, error) {
	if admission.Stored(p) {
		p = s.readmitPod(p)
	} else {
		if len(s.bounds.ranges[p.Namespace]) > 0 {
			p = p.DeepCopy()
			admission.Default(p) // before: a limit that the template sets is the request, not the range's default
			s.bounds.fillDefaults(p)
		}
		var err error
		if p, err = admission.Create(s.admission, s.catalog, p); err != nil {
			return nil, err
		}
	}
	fillIdentity(p, s.clock.start)
	return p, nil
}

// fillIdentity gives a pod what the API server gives to every object: a UID, and the time at
// which it was created. The UID is made of its name, so that it is the same in every run.
func fillIdentity(p *v1.Pod, now time.Time) {
	if p.UID == "" {
		p.UID = types.UID(p.Namespace + "/" + p.Name)
	}
	if p.CreationTimestamp.IsZero() {
		p.CreationTimestamp = metav1.NewTime(now)
	}
}
