package agent

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	stdruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/internal/node/agent/cri"
	"github.com/berth-k8s/berth/internal/node/agent/csi"
	"github.com/berth-k8s/berth/internal/node/agent/devices/plugins"
	"github.com/berth-k8s/berth/internal/node/agent/metrics"
	"github.com/berth-k8s/berth/internal/node/agent/pressure"
	"github.com/berth-k8s/berth/internal/node/agent/probe"
	"github.com/berth-k8s/berth/internal/node/agent/volumes"
	"github.com/berth-k8s/berth/internal/node/agent/volumes/objects"
)

// Agent runs a node.
type Agent struct {
	config  Config
	rest    *rest.Config
	client  kubernetes.Interface
	machine machine
	runtime *cri.Runtime

	pods     *pods
	mirrors  *mirrors
	statuses *statuses
	tell     func(eventlog.Event) // queues an event; never waits
	objects  *objects.Store
	volumes  *volumes.Manager
	devices  *plugins.Manager
	// drivers are the CSI drivers of the node, and publisher has them make volumes.
	drivers   *csi.Drivers
	publisher *csi.Publisher
	services  corelisters.ServiceLister
	// servicesKnown reports whether Services have been listed.
	servicesKnown func() bool
	// starts bounds how many pods are being started at once.
	starts    gate
	prober    *probe.Prober
	hooksOf   *probe.Hooks
	cgroups   *groups
	pinning   pinning
	kubelet   *metrics.Kubelet
	collector *metrics.Collector
	images    *images
	garbage   *pressure.Garbage
	watcher   *pressure.Watcher

	hostAddresses []string

	// listed: all pods that belong here are known, from the API and from files, so anything else is
	// left over.
	listed, apiKnown, filesKnown atomic.Bool
	// health of the container runtime.
	health health
	// goingDown is the state of the machine's shutdown.
	goingDown goingDown
	// port is that of the kubelet's API.
	port atomic.Int64
	// nodeChanged triggers a check of the node's status.
	nodeChanged chan struct{}
	// admission is held during an admission decision, so that two pods do not take the same room.
	admission sync.Mutex
	// object is the node's in the API.
	object nodeObject

	// Ready is called when the node is registered.
	Ready func(node string, took time.Duration)
}

// New inspects the machine. It changes nothing on it yet.
func New(config Config, cfg *rest.Config) (*Agent, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	m, err := lookAtMachine()
	if err != nil {
		return nil, err
	}
	if config.NodeName == "" {
		config.NodeName = m.hostname
	}
	m.hostname = config.NodeName
	if config.CPUs > 0 {
		m.cpus = config.CPUs
	}
	if len(config.NodeIPs) == 0 {
		ip, err := address()
		if err != nil {
			return nil, err
		}
		config.NodeIPs = []net.IP{ip}
	}
	if config.Address == nil {
		config.Address = config.NodeIPs[0]
	}
	a := &Agent{
		config: config, rest: cfg, client: client, machine: m, pods: newPods(),
		nodeChanged: make(chan struct{}, 1), starts: make(gate, max(4, 2*stdruntime.NumCPU())),
		Ready: func(string, time.Duration) {},
	}
	a.mirrors = newMirrors(client, a.Node)
	a.statuses = newStatuses(client, a.target)
	a.kubelet = metrics.NewKubelet(config.NodeName, a.Pods)
	for _, ip := range config.NodeIPs {
		a.hostAddresses = append(a.hostAddresses, ip.String())
	}
	a.object.node = &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: config.NodeName, Labels: a.labels()}}
	return a, nil
}

func (a *Agent) hostIPs() []string { return a.hostAddresses }

// Run runs the node until ctx ends. Pods keep running then, and the next Run takes them over.
func (a *Agent) Run(ctx context.Context) error {
	began := time.Now()
	if err := a.prepare(ctx); err != nil {
		return err
	}
	defer a.runtime.Close(context.WithoutCancel(ctx))
	listener, err := a.listen()
	if err != nil {
		return err
	}
	defer listener.Close()
	events := eventlog.New(a.client, component)
	events.Host, events.Drain = a.config.NodeName, eventsDrain
	a.tell = events.Tell
	if err := a.connectParts(ctx); err != nil {
		return err
	}

	var parts sync.WaitGroup
	ctx, stop := context.WithCancel(ctx)
	defer func() { stop(); parts.Wait(); a.pods.running.Wait() }()
	factory := informers.NewSharedInformerFactory(a.client, 0)
	services := factory.Core().V1().Services()
	a.services, a.servicesKnown = services.Lister(), services.Informer().HasSynced
	factory.StartWithContext(ctx)
	failed := make(chan error, 1)
	parts.Go(func() {
		if err := a.serve(ctx, listener); err != nil {
			failed <- err
		}
	})
	// Pods are managed from the beginning, whether or not the API can be reached.
	for _, part := range []func(context.Context){
		events.Run, a.askRuntime, a.images.run, a.statuses.run, a.watchPods, a.watchNode, a.staticPods, a.showStatic, a.glanceAround, a.sweepAround, a.volumes.Run, a.runPressure, a.devices.Run, a.drivers.Run, a.watchPlugins, a.serveResources, a.rotateLogs, a.retryResizesAround, a.placeAround, a.awaitShutdown, a.serveHealthz,
	} {
		parts.Go(func() { part(ctx) })
	}
	parts.Go(func() {
		if !a.register(ctx) {
			return
		}
		a.Ready(a.config.NodeName, time.Since(began))
		parts.Go(func() { a.keepLease(ctx) })
		a.keepNode(ctx)
	})
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// ownOOMScore is the agent's oom_score_adj, as the kubelet's: if memory runs out, the kernel kills
// pods first, even Guaranteed ones.
const ownOOMScore = "-999"

// prepare creates the folders and connects to the runtime.
func (a *Agent) prepare(ctx context.Context) error {
	if err := os.WriteFile(a.machine.oomScore, []byte(ownOOMScore), 0o644); err != nil {
		klog.InfoS("The kernel may kill the agent before pods if memory runs out", "err", err)
	}
	for _, dir := range []string{a.config.RootDir, a.config.PodLogDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	runtime, err := connect(ctx, a.config.RuntimeEndpoint, a.config.NodeName)
	if err != nil {
		return err
	}
	runtime.Runtime, runtime.Images = a.kubelet.Runtime(runtime.Runtime), a.kubelet.Images(runtime.Images)
	a.runtime = runtime
	// The runtime is asked once before the node registers, so that the node is not NotReady for a
	// moment.
	a.health.begin(time.Now())
	if state, err := runtime.State(ctx); err == nil {
		a.health.answer(time.Now(), state)
	}
	return nil
}

// startPatience is how long to wait for the runtime, which may still be starting.
const startPatience = time.Minute

func connect(ctx context.Context, endpoint, node string) (*cri.Runtime, error) {
	if path, ok := SocketPath(endpoint); ok {
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("no container runtime: %w: start containerd, or name its socket with --container-runtime-endpoint", err)
		}
	}
	deadline := time.Now().Add(startPatience)
	for {
		r, err := cri.Connect(ctx, endpoint, node)
		if err == nil || time.Now().After(deadline) || ctx.Err() != nil {
			return r, err
		}
		klog.InfoS("The container runtime does not answer yet", "endpoint", endpoint, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// SocketPath returns the path of a runtime's endpoint, if that is a Unix socket.
func SocketPath(endpoint string) (string, bool) {
	return strings.CutPrefix(endpoint, "unix://")
}

func (a *Agent) listen() (net.Listener, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(a.config.Address.String(), fmt.Sprint(a.config.Port)))
	if err != nil {
		return nil, fmt.Errorf("serve the kubelet's API: %w: choose another --port, or 0 for any that is free", err)
	}
	a.port.Store(int64(listener.Addr().(*net.TCPAddr).Port))
	return listener, nil
}

// connectParts creates the agent's components, each with what it needs of the node.
func (a *Agent) connectParts(ctx context.Context) (err error) {
	if err := a.openVolumes(ctx); err != nil {
		return err
	}
	if err := a.openImages(ctx); err != nil {
		return err
	}
	a.openDevices()
	if err := a.pinning.open(a.config, os.DirFS("/sys/devices/system"), a.kubelet); err != nil {
		return err
	}
	if err := a.pinning.openMemory(a.config, os.DirFS("/sys/devices/system"), a.capacity()); err != nil {
		return err
	}
	if a.cgroups, err = openGroups(a.config, &a.pinning); err != nil {
		return err
	}
	if err := a.enforceReservations(); err != nil {
		return err
	}
	if err := a.measure(ctx); err != nil {
		return err
	}
	a.wire(ctx)
	return nil
}

func (a *Agent) openImages(ctx context.Context) (err error) {
	a.images, err = openImages(ctx, imageOptions{
		runtime: a.runtime.Images, dir: a.config.RootDir, policy: a.config.ImagePulls, secret: a.objects.Secret, event: a.containerEvent,
		pulled: a.kubelet.Pulled, listed: a.reportNode,
	})
	return err
}

// openVolumes creates the store of the objects that pods use, and the manager of the pods' volumes.
func (a *Agent) openVolumes(ctx context.Context) (err error) {
	a.objects = objects.New(ctx, a.client, func(uid types.UID) {
		a.volumes.Changed(uid)
		if w := a.pods.get(uid); w != nil {
			w.wake()
		}
	})
	if err := a.openCSI(); err != nil {
		return err
	}
	a.volumes, err = volumes.New(volumes.Options{
		Dir: a.config.RootDir, Objects: a.objects, Client: a.client, CSI: a.publisher,
		Tokens: func(ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
			return a.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
		},
		Allocatable: func() v1.ResourceList { return a.allocatable(a.capacity()) },
	})
	return err
}

func (a *Agent) keepLease(ctx context.Context) {
	seconds := int32(a.config.LeaseDuration / time.Second)
	lease.NewController(clock.RealClock{}, a.client, a.config.NodeName, seconds, nil, a.config.LeaseDuration/4,
		a.config.NodeName, v1.NamespaceNodeLease, a.ownLease).Run(ctx)
}

// ownLease makes the node the Lease's owner, so that both are deleted together.
func (a *Agent) ownLease(l *coordinationv1.Lease) error {
	if node := a.Node(); len(l.OwnerReferences) == 0 && node.UID != "" {
		l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	}
	return nil
}

// apiListed records that the API has listed all pods of this node once.
func (a *Agent) apiListed() {
	a.apiKnown.Store(true)
	a.allListed()
}

func (a *Agent) allListed() {
	if a.apiKnown.Load() && a.filesKnown.Load() {
		a.listed.Store(true)
		a.retryResizes()
	}
}

// target is the API object that gets a pod's status: the pod, or the mirror of a static one, if
// there is one.
func (a *Agent) target(w *worker) *v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.static:
		return a.mirrors.of(w.pod)
	case w.gone:
		return nil
	}
	return w.inAPI
}

func (a *Agent) logsOf(pod *v1.Pod) string { return cri.PodLogs(a.config.PodLogDir, pod) }

// forgetLogs removes the logs of a pod that is gone.
func (a *Agent) forgetLogs(pod *v1.Pod) {
	if dir := a.logsOf(pod); filepath.Dir(dir) == filepath.Clean(a.config.PodLogDir) {
		if err := os.RemoveAll(dir); err != nil {
			klog.ErrorS(err, "Cannot remove a pod's logs", "dir", dir)
		}
	}
}
