package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/kube/feed"
	"github.com/berth-k8s/berth/test/internal/plane"
	"github.com/berth-k8s/berth/test/internal/process"
	"github.com/berth-k8s/berth/test/kcm"
)

// cluster is a control plane and its objects.
type cluster struct {
	programs
	dir        string
	flags      []string // of berth controller
	kubeconfig string
	client     kubernetes.Interface
	plane      *plane.Plane
	nodes      int
	tainted    int // of the nodes, in the last run
	runs       int
}

func startCluster(ctx context.Context, p programs, dir string) (*cluster, error) {
	server, err := plane.Start(ctx, p.controlplane, dir, "--controllers=serviceaccount-controller")
	if err != nil {
		return nil, err
	}
	return &cluster{programs: p, dir: dir, plane: server, kubeconfig: server.Kubeconfig, client: server.Client}, nil
}

func (c *cluster) stop() { c.plane.Stop() }

// The pods of all scenarios are the same ones: they tolerate the key later for some seconds, and
// the key now not at all.
const (
	keyNow   = "now"
	keyLater = "later"
)

// fillCluster makes the cluster what the scenario needs: the nodes, without taints, and their pods.
func (c *cluster) fillCluster(ctx context.Context, s scenario) error {
	if err := plane.InParallel(ctx, c.tainted, func(i int) error { return c.setTaints(ctx, i) }); err != nil {
		return err
	}
	before := c.nodes
	c.nodes = s.nodes
	if err := plane.InParallel(ctx, c.nodes-before, func(i int) error {
		_, err := c.client.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: nodeName(before + i), Labels: map[string]string{v1.LabelTopologyZone: fmt.Sprintf("z-%d", i%3)},
		}}, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}

	if err := plane.InParallel(ctx, c.tainted*s.perNode,
		func(i int) error { return c.createPod(ctx, i/s.perNode, i%s.perNode) }); err != nil {
		return err
	}

	c.tainted = 0
	return plane.InParallel(ctx, (c.nodes-before)*s.perNode, func(i int) error { return c.createPod(ctx, before+i/s.perNode, i%s.perNode) })
}

func nodeName(i int) string { return fmt.Sprintf("n-%d", i) }

// seconds is what pods tolerate of keyLater.
const seconds = 15

func (c *cluster) createPod(ctx context.Context, node, i int) error {
	tolerates := int64(seconds)
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("app-6d5f8c7b9-%d-%d", node, i),
			Labels: map[string]string{"app": "app", "pod-template-hash": "6d5f8c7b9"}},
		Spec: v1.PodSpec{
			NodeName: nodeName(node),
			Containers: []v1.Container{{
				Name: "app", Image: "registry.example/app:v1", Ports: []v1.ContainerPort{{ContainerPort: 8080}},
				Env: []v1.EnvVar{{Name: "LOG_LEVEL", Value: "info"},
					{Name: "POD_NAME", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
			}},
			Tolerations: []v1.Toleration{{
				Key: keyLater, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &tolerates,
			}},
			TerminationGracePeriodSeconds: new(int64), // there is no kubelet to wait for
			AutomountServiceAccountToken:  new(bool),
		},
	}
	return plane.Patiently(ctx, func() error {
		_, err := c.client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // it was never evicted
		}
		return err
	})
}

// taintNodes does to the nodes what kubectl taint does.
func (c *cluster) taintNodes(ctx context.Context, s scenario) error {
	c.tainted = s.tainted
	key := keyNow
	if s.seconds > 0 {
		key = keyLater
	}
	return plane.InParallel(ctx, s.tainted, func(i int) error { return c.setTaints(ctx, i, key) })
}

func (c *cluster) setTaints(ctx context.Context, node int, keys ...string) error {
	taints := []v1.Taint{}
	for _, key := range keys {
		taints = append(taints, v1.Taint{Key: key, Value: "x", Effect: v1.TaintEffectNoExecute})
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": taints}})
	if err != nil {
		return err
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, nodeName(node), types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: "kubectl-taint"})
	return err
}

// side is the program that evicts.
type side struct {
	*process.Process
	address string // of Berth's endpoints
}

func (c *cluster) startSide(ctx context.Context, name string) (*side, error) {
	c.runs++
	log := filepath.Join(c.dir, fmt.Sprintf("%s-%d.log", name, c.runs))
	switch name {
	case "upstream":
		p, err := process.Start(c.upstream, log, kcm.Args(c.kubeconfig)...)
		return &side{Process: p}, err
	case "berth":
		args := []string{"controller", "--kubeconfig", c.kubeconfig, "--controllers=taint-eviction-controller",
			"--leader-elect=false", "--health-bind-address=127.0.0.1:0", "--profiling"}
		p, err := process.Start(c.berth, log, append(args, c.flags...)...)
		if err != nil {
			return nil, err
		}
		const says = "health and metrics on http://"
		line, err := p.WaitFor(ctx, says)
		return &side{p, strings.TrimPrefix(line, says)}, err
	}

	return nil, fmt.Errorf("--side: %q: must be berth or upstream", name)
}

// saveProfiles saves the heap's profile and that of the allocations.
func (s *side) saveProfiles(name string) error {
	for _, kind := range []string{"heap", "allocs"} {
		response, err := http.Get("http://" + s.address + "/debug/pprof/" + kind)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		file, err := os.Create(name + "-" + kind + ".pprof")
		if err != nil {
			return err
		}
		if _, err := io.Copy(file, response.Body); err != nil {
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
	}

	return nil
}

// programs are the paths of what runs.
type programs struct {
	berth, controlplane, upstream string
}

func programsIn(dir string) programs {
	return programs{filepath.Join(dir, plane.Berth), filepath.Join(dir, plane.ControlPlane), filepath.Join(dir, "kube-controller-manager")}
}

func buildPrograms(dir string) (programs, error) {
	if err := plane.Build(dir, plane.Berth, plane.ControlPlane); err != nil {
		return programs{}, err
	}
	_, err := kcm.Build(dir)
	return programsIn(dir), err
}

// atWork waits until the side that runs is seen to evict.
func (c *cluster) atWork(ctx context.Context) error {
	const name = "is-at-work"
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: "work", Effect: v1.TaintEffectNoExecute}}}}
	if _, err := c.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}

	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{NodeName: name, Containers: []v1.Container{{Name: "c", Image: "none"}},
			TerminationGracePeriodSeconds: new(int64)},
	}

	if _, err := c.client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		if _, err := c.client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}

	return errors.New("nothing evicted within two minutes")
}

// observer counts the pods that go.
type observer struct {
	stop func()

	mu          sync.Mutex // guards what follows
	gone        int
	first, last time.Time
}

// observePods returns when it sees every change.
func (c *cluster) observePods(ctx context.Context) *observer {
	ctx, cancel := context.WithCancel(ctx)
	o := &observer{}
	watching, ended := make(chan struct{}), make(chan struct{})
	o.stop = func() { cancel(); <-ended }
	var once sync.Once
	pods := c.client.CoreV1().Pods("default")
	go func() {
		defer close(ended)
		feed.Run(ctx, feed.Source{
			Name: "pods",
			List: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				options.Limit = 1 // of those that are there nothing has to be known
				list, err := pods.List(ctx, options)
				if err == nil {
					list.Continue, list.RemainingItemCount = "", nil
				}
				return list, err
			},
			Watch: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				return pods.Watch(ctx, options)
			},
		}, feed.Sink{
			Listing: func() {}, Listed: func() {}, Seen: func(runtime.Object) {},
			Back: func() { once.Do(func() { close(watching) }) },
			Gone: func(runtime.Object) { o.countGone() },
		})
	}()
	select {
	case <-watching:
	case <-ctx.Done():
	}
	return o
}

func (o *observer) countGone() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = time.Now()
	if o.gone == 0 {
		o.first = o.last
	}
	o.gone++
}

// begins is how long the first may take: upstream's takes a quarter of a minute on an idle machine.
const begins = 90 * time.Second

// awaitGone waits for so many, at least until the end, and while they go on going.
func (o *observer) awaitGone(ctx context.Context, due int, end time.Time) (first, last time.Time, gone int) {
	for ctx.Err() == nil {
		o.mu.Lock()
		first, last, gone = o.first, o.last, o.gone
		o.mu.Unlock()
		over := time.Now().After(end) && time.Since(last) > patience
		if gone == 0 {
			over = time.Now().After(end.Add(begins))
		}
		if gone >= due || over {
			return first, last, gone
		}
		<-time.After(20 * time.Millisecond)
	}
	return first, last, gone
}
