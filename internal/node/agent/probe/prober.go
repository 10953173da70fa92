package probe

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Executor runs a command in a container, as the CRI's client does.
type Executor interface {
	ExecSync(ctx context.Context, containerID string, command []string, timeout time.Duration) (stdout, stderr []byte, err error)
}

// Options are what a Prober and Hooks work with.
type Options struct {
	Exec Executor
	// Event records something about a container of the pod.
	Event func(pod *v1.Pod, container, eventType, reason, message string)
	// Report is called when a verdict about a container of the pod has changed. It must not block.
	Report func(uid types.UID)
}

// Prober probes the containers of all pods of the node.
type Prober struct {
	ctx     context.Context // ends all probes
	options Options
	metrics *metrics

	mu       sync.Mutex
	pods     map[types.UID]*podProbes
	verdicts map[string]Verdicts // by container ID, of containers that have probes
}

// podProbes are those of one pod, guarded by Prober.mu.
type podProbes struct {
	ctx    context.Context
	cancel context.CancelFunc
	pod    *v1.Pod       // as it was seen last, not to be changed
	status *v1.PodStatus // likewise, as the runtime shows it
	wake   []chan struct{}
	ids    map[string]string // the current container's ID by its name
	// leaving: the pod is ending, whether or not it is deleted.
	leaving bool
}

// New returns a Prober without pods. It ends with the context.
func New(ctx context.Context, options Options) *Prober {
	return &Prober{ctx: ctx, options: options, metrics: newMetrics(), pods: map[types.UID]*podProbes{}, verdicts: map[string]Verdicts{}}
}

// Sync records the pod's current state: its containers' IDs, states and times and the pod's
// address, as the runtime shows them. Call it in every sync of the pod, before the verdicts are
// used; the first call starts the pod's probes. Ready and started in status are ignored. Those in
// pod.Status, which the API has, count: a container that was ready stays so when the agent
// restarts. Neither argument may be changed afterwards.
func (p *Prober) Sync(pod *v1.Pod, status *v1.PodStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	probes := p.pods[pod.UID]
	if probes == nil {
		if probes = p.begin(pod); probes == nil {
			return // a pod without probes
		}
	}
	probes.pod, probes.status = pod, status
	for _, c := range probed(pod) {
		p.adopt(probes, c.Name)
	}
	probes.wakeAll()
}

// Leave ends the liveness and startup probes of a pod that is ending: they must not disturb it.
func (p *Prober) Leave(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if probes := p.pods[uid]; probes != nil && !probes.leaving {
		probes.leaving = true
		probes.wakeAll()
	}
}

func (p *podProbes) wakeAll() {
	for _, wake := range p.wake {
		select {
		case wake <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// begin starts a goroutine for each of the pod's probes.
func (p *Prober) begin(pod *v1.Pod) *podProbes {
	probes := &podProbes{ids: map[string]string{}}
	probes.ctx, probes.cancel = context.WithCancel(p.ctx)
	for _, c := range probed(pod) {
		for _, kind := range []Kind{Startup, Readiness, Liveness} {
			if spec := specOf(&c, kind); spec != nil {
				wake := make(chan struct{}, 1)
				probes.wake = append(probes.wake, wake)
				w := worker{prober: p, probes: probes, container: c, gauge: NewGauge(kind, spec), wake: wake}
				go w.run()
			}
		}
	}
	if len(probes.wake) == 0 {
		probes.cancel()
		return nil
	}
	p.pods[pod.UID] = probes
	return probes
}

// probed returns the containers whose probes count: main containers and sidecars.
func probed(pod *v1.Pod) []v1.Container {
	var all []v1.Container
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			all = append(all, c)
		}
	}
	return append(all, pod.Spec.Containers...)
}

// adopt sets the verdicts of a container that is seen for the first time.
func (p *Prober) adopt(probes *podProbes, container string) {
	now := statusOf(probes.status, container)
	if now == nil || now.ContainerID == "" || probes.ids[container] == now.ContainerID {
		return
	}
	delete(p.verdicts, probes.ids[container])
	probes.ids[container] = now.ContainerID
	v := Verdicts{Startup: first(Startup), Readiness: first(Readiness), Liveness: first(Liveness)}
	if before := statusOf(&probes.pod.Status, container); before != nil && before.ContainerID == now.ContainerID {
		if before.Started != nil && *before.Started {
			v.Startup = Success
		}
		if before.Ready {
			v.Readiness = Success
		}
	}
	p.verdicts[now.ContainerID] = v
}

func statusOf(status *v1.PodStatus, container string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{status.ContainerStatuses, status.InitContainerStatuses} {
		if i := slices.IndexFunc(list, func(s v1.ContainerStatus) bool { return s.Name == container }); i >= 0 {
			return &list[i]
		}
	}
	return nil
}

// Stop ends the pod's probes and forgets their results.
func (p *Prober) Stop(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	probes := p.pods[uid]
	if probes == nil {
		return
	}
	probes.cancel()
	for _, id := range probes.ids {
		delete(p.verdicts, id)
	}
	delete(p.pods, uid)
	p.metrics.forget(probes.pod)
}

// Verdicts returns those of a container, by its ID as in the status.
func (p *Prober) Verdicts(containerID string) Verdicts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.verdicts[containerID]
}

// worker runs one probe of one pod. It owns its gauge.
type worker struct {
	prober    *Prober
	probes    *podProbes
	container v1.Container
	gauge     *Gauge
	wake      chan struct{}
}

func (w *worker) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var due <-chan time.Time
		step, pod, status := w.look()
		switch {
		case step.End:
			return
		case step.Probe:
			result := w.prober.probe(w.probes.ctx, w.gauge.kind, pod, status, &w.container)
			if w.gauge.Answer(result) {
				w.publish()
			}
			continue
		case !step.At.IsZero():
			timer.Reset(time.Until(step.At))
			due = timer.C
		}
		select {
		case <-w.probes.ctx.Done():
			return
		case <-w.wake:
		case <-due:
		}
	}
}

// look shows the gauge the container's current state, and returns what it asks for.
func (w *worker) look() (Step, *v1.Pod, *v1.PodStatus) {
	p := w.prober
	p.mu.Lock()
	defer p.mu.Unlock()
	pod, status := w.probes.pod, w.probes.status
	if w.probes.ctx.Err() != nil || pod == nil {
		return Step{}, nil, nil
	}
	id := w.probes.ids[w.container.Name]
	verdicts := p.verdicts[id]
	held := verdicts.of(w.gauge.kind)
	now := time.Now()
	if id != w.gauge.id {
		known := *held
		if known == first(w.gauge.kind) {
			known = Unknown
		}
		w.gauge.Take(id, known, now, rand.N(time.Duration(w.gauge.spec.PeriodSeconds)*time.Second))
	}
	sight := Sight{ID: id, Leaving: pod.DeletionTimestamp != nil || w.probes.leaving}
	if seen := statusOf(status, w.container.Name); seen != nil && seen.ContainerID == id && seen.State.Running != nil {
		sight.Running, sight.StartedAt = true, seen.State.Running.StartedAt.Time
		sight.Started = Started(&w.container, true, verdicts)
	}
	step := w.gauge.See(sight, now)
	if id != "" {
		*held = w.gauge.Verdict()
		p.verdicts[id] = verdicts
	}
	return step, pod, status
}

// publish publishes the gauge's verdict, unless the container has been replaced meanwhile.
func (w *worker) publish() {
	p := w.prober
	p.mu.Lock()
	id := w.gauge.id
	current := w.probes.ctx.Err() == nil && id != "" && w.probes.ids[w.container.Name] == id
	if current {
		verdicts := p.verdicts[id]
		*verdicts.of(w.gauge.kind) = w.gauge.Verdict()
		p.verdicts[id] = verdicts
		w.probes.wakeAll() // a startup probe lets the others begin
	}
	uid := w.probes.pod.UID
	p.mu.Unlock()
	if current && p.options.Report != nil {
		p.options.Report(uid)
	}
}

// bare strips the runtime's name from a container's ID.
func bare(id string) string {
	if _, after, ok := strings.Cut(id, "://"); ok {
		return after
	}
	return id
}
