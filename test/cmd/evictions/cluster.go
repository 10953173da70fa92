package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/internal/kube/feed"
	"github.com/berth-k8s/berth/test/kcm"
)

// cluster is a control plane and its objects.
type cluster struct {
	programs
	dir        string
	flags      []string // of berth controller
	kubeconfig string
	client     kubernetes.Interface
	plane      *process
	nodes      int
	tainted    int // of the nodes, in the last run
	runs       int
}

func startCluster(ctx context.Context, p programs, dir string) (*cluster, error) {
	c := &cluster{programs: p, dir: dir, kubeconfig: filepath.Join(dir, "data", "kubeconfig")}
	var err error
	if c.plane, err = start(p.controlplane, filepath.Join(dir, "controlplane.log"), "--data-dir", filepath.Join(dir, "data"), "--controllers=serviceaccount-controller"); err != nil {
		return nil, err
	}
	if _, err := c.plane.waitFor(ctx, "ready "); err != nil {
		c.stop()
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		c.stop()
		return nil, err
	}
	config.QPS, config.ContentType = -1, runtime.ContentTypeProtobuf
	c.client, err = kubernetes.NewForConfig(config)
	return c, err
}

func (c *cluster) stop() { c.plane.kill() }

// The pods of all scenarios are the same ones: they tolerate the key later for some seconds, and
// the key now not at all.
const (
	keyNow   = "now"
	keyLater = "later"
)

// fill makes the cluster what the scenario needs: the nodes, without taints, and their pods.
func (c *cluster) fill(ctx context.Context, s scenario) error {
	if err := c.inParallel(ctx, c.tainted, func(i int) error { return c.setTaints(ctx, i) }); err != nil {
		return err
	}
	before := c.nodes
	c.nodes = s.nodes
	if err := c.inParallel(ctx, c.nodes-before, func(i int) error {
		_, err := c.client.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: nodeName(before + i), Labels: map[string]string{v1.LabelTopologyZone: fmt.Sprintf("z-%d", i%3)},
		}}, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	if err := c.inParallel(ctx, c.tainted*s.perNode, func(i int) error { return c.createPod(ctx, i/s.perNode, i%s.perNode) }); err != nil {
		return err
	}
	c.tainted = 0
	return c.inParallel(ctx, (c.nodes-before)*s.perNode, func(i int) error { return c.createPod(ctx, before+i/s.perNode, i%s.perNode) })
}

func (c *cluster) inParallel(ctx context.Context, n int, do func(i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(32)
	for i := 0; i < n && ctx.Err() == nil; i++ {
		group.Go(func() error { return do(i) })
	}
	return group.Wait()
}

func nodeName(i int) string { return fmt.Sprintf("n-%d", i) }

// seconds is what pods tolerate of keyLater.
const seconds = 15

func (c *cluster) createPod(ctx context.Context, node, i int) error {
	tolerates := int64(seconds)
	_, err := c.client.CoreV1().Pods("default").Create(ctx, &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("app-6d5f8c7b9-%d-%d", node, i), Labels: map[string]string{"app": "app", "pod-template-hash": "6d5f8c7b9"}},
		Spec: v1.PodSpec{
			NodeName: nodeName(node),
			Containers: []v1.Container{{
				Name: "app", Image: "registry.example/app:v1", Ports: []v1.ContainerPort{{ContainerPort: 8080}},
				Env: []v1.EnvVar{{Name: "LOG_LEVEL", Value: "info"}, {Name: "POD_NAME", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
			}},
			Tolerations: []v1.Toleration{{
				Key: keyLater, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &tolerates,
			}},
			TerminationGracePeriodSeconds: new(int64), // there is no kubelet to wait for
			AutomountServiceAccountToken:  new(bool),
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // it was never evicted
	}
	if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "service account") { // the cluster is just starting
		<-time.After(100 * time.Millisecond)
		return c.createPod(ctx, node, i)
	}
	return err
}

// taint does to the nodes what kubectl taint does.
func (c *cluster) taint(ctx context.Context, s scenario) error {
	c.tainted = s.tainted
	key := keyNow
	if s.seconds > 0 {
		key = keyLater
	}
	return c.inParallel(ctx, s.tainted, func(i int) error { return c.setTaints(ctx, i, key) })
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
	_, err = c.client.CoreV1().Nodes().Patch(ctx, nodeName(node), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "kubectl-taint"})
	return err
}

func (c *cluster) startSide(ctx context.Context, side string) (*process, error) {
	c.runs++
	log := filepath.Join(c.dir, fmt.Sprintf("%s-%d.log", side, c.runs))
	switch side {
	case "upstream":
		return start(c.upstream, log, kcm.Args(c.kubeconfig)...)
	case "berth":
		args := []string{"controller", "--kubeconfig", c.kubeconfig, "--controllers=taint-eviction-controller", "--leader-elect=false", "--health-bind-address=127.0.0.1:0", "--profiling"}
		p, err := start(c.berth, log, append(args, c.flags...)...)
		if err != nil {
			return nil, err
		}
		const says = "health and metrics on http://"
		line, err := p.waitFor(ctx, says)
		p.address = strings.TrimPrefix(line, says)
		return p, err
	}
	return nil, fmt.Errorf("--side: %q: must be berth or upstream", side)
}

// atWork waits until the side that runs is seen to evict.
func (c *cluster) atWork(ctx context.Context) error {
	const name = "is-at-work"
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: "work", Effect: v1.TaintEffectNoExecute}}}}
	if _, err := c.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.PodSpec{NodeName: name, Containers: []v1.Container{{Name: "c", Image: "none"}}, TerminationGracePeriodSeconds: new(int64)},
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

// observe returns when it sees every change.
func (c *cluster) observe(ctx context.Context) *observer {
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
			Gone: func(runtime.Object) { o.count() },
		})
	}()
	select {
	case <-watching:
	case <-ctx.Done():
	}
	return o
}

func (o *observer) count() {
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

// wait waits for so many, at least until the end, and while they go on going.
func (o *observer) wait(ctx context.Context, due int, end time.Time) (first, last time.Time, gone int) {
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
