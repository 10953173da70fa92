package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
)

// annotationSource is where a pod comes from, by the agent's own word.
const annotationSource = "kubernetes.io/config.source"

// alpha is upstream's stability level of these metrics.
const alpha = "[ALPHA] "

// startBuckets are upstream's for the start of a pod.
var startBuckets = []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}

// Kubelet has the kubelet's metrics that dashboards of nodes use: how many pods and containers
// there are, how long starting and syncing them takes, and the requests to the runtime. Names,
// labels and texts are upstream's. Use NewKubelet.
type Kubelet struct {
	podWorker   *prometheus.HistogramVec
	podStart    prometheus.Histogram
	relist      prometheus.Histogram
	relistGap   prometheus.Histogram
	lastSeen    prometheus.Gauge
	startedPods prometheus.Counter
	operations  operations
	census      census
	happened
	cpuPinning
}

// NewKubelet returns the metrics of a node. Its pods are counted at every scrape.
func NewKubelet(node string, pods func() []*v1.Pod) *Kubelet {
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: alpha + help, Buckets: buckets})
	}
	return &Kubelet{
		podWorker: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_pod_worker_duration_seconds", Buckets: prometheus.DefBuckets,
			Help: alpha + "Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync",
		}, []string{"operation_type"}),
		podStart: histogram("kubelet_pod_start_duration_seconds",
			"Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run", startBuckets),
		relist:    histogram("kubelet_pleg_relist_duration_seconds", "Duration in seconds for relisting pods in PLEG.", prometheus.DefBuckets),
		relistGap: histogram("kubelet_pleg_relist_interval_seconds", "Interval in seconds between relisting in PLEG.", prometheus.DefBuckets),
		lastSeen: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_pleg_last_seen_seconds", Help: alpha + "Timestamp in seconds when PLEG was last seen active.",
		}),
		startedPods: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_started_pods_total", Help: alpha + "Cumulative number of pods started",
		}),
		operations: newOperations(),
		census:     census{node, pods},
		happened:   newHappened(),
		cpuPinning: newCPUPinning(),
	}
}

// Synced records one sync of a pod.
func (k *Kubelet) Synced(took time.Duration) {
	k.podWorker.WithLabelValues("sync").Observe(took.Seconds())
}

// Started records that a pod is running, this long after it was first seen.
func (k *Kubelet) Started(after time.Duration) {
	k.startedPods.Inc()
	k.podStart.Observe(max(after, 0).Seconds())
}

// Relisted records that the runtime's pods were listed, this long after the last time; 0: it is the
// first.
func (k *Kubelet) Relisted(took, since time.Duration) {
	k.relist.Observe(took.Seconds())
	k.lastSeen.Set(float64(time.Now().Unix()))
	if since > 0 {
		k.relistGap.Observe(since.Seconds())
	}
}

func (k *Kubelet) all() []prometheus.Collector {
	own := []prometheus.Collector{k.podWorker, k.podStart, k.relist, k.relistGap, k.lastSeen, k.startedPods, k.operations.total, k.operations.errors, k.operations.duration, k.census}
	return slices.Concat(own, k.happened.all(), k.cpuPinning.all())
}

// Describe and Collect implement prometheus.Collector.
func (k *Kubelet) Describe(descs chan<- *prometheus.Desc) {
	for _, c := range k.all() {
		c.Describe(descs)
	}
}

func (k *Kubelet) Collect(out chan<- prometheus.Metric) {
	for _, c := range k.all() {
		c.Collect(out)
	}
}

var (
	nodeName          = prometheus.NewDesc("kubelet_node_name", alpha+"The node's name. The count is always 1.", []string{"node"}, nil)
	runningPods       = prometheus.NewDesc("kubelet_running_pods", alpha+"Number of pods that have a running pod sandbox", nil, nil)
	desiredPods       = prometheus.NewDesc("kubelet_desired_pods", alpha+"The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.", []string{"static"}, nil)
	activePods        = prometheus.NewDesc("kubelet_active_pods", alpha+"The number of pods the kubelet considers active and which are being considered when admitting new pods. static is true if the pod is not from the apiserver.", []string{"static"}, nil)
	runningContainers = prometheus.NewDesc("kubelet_running_containers", alpha+"Number of containers currently running", []string{"container_state"}, nil)
)

// census counts the node's pods and containers by their statuses.
type census struct {
	node string
	pods func() []*v1.Pod
}

func (c census) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{nodeName, runningPods, desiredPods, activePods, runningContainers} {
		descs <- desc
	}
}

func (c census) Collect(out chan<- prometheus.Metric) {
	desired, active := map[string]int{"": 0, "true": 0}, map[string]int{"": 0, "true": 0}
	pods, containers := 0, map[string]int{"created": 0, "exited": 0, "running": 0, "unknown": 0}
	for _, pod := range c.pods() {
		static := ""
		if source, set := pod.Annotations[annotationSource]; set && source != "api" {
			static = "true"
		}
		desired[static]++
		if pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed {
			active[static]++
		}
		runs := false
		for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
			for i := range list {
				switch state := list[i].State; {
				case state.Running != nil:
					runs = true
					containers["running"]++
				case state.Terminated != nil:
					containers["exited"]++
				}
			}
		}
		if runs {
			pods++
		}
	}
	out <- prometheus.MustNewConstMetric(nodeName, prometheus.GaugeValue, 1, c.node)
	out <- prometheus.MustNewConstMetric(runningPods, prometheus.GaugeValue, float64(pods))
	for static := range desired {
		out <- prometheus.MustNewConstMetric(desiredPods, prometheus.GaugeValue, float64(desired[static]), static)
		out <- prometheus.MustNewConstMetric(activePods, prometheus.GaugeValue, float64(active[static]), static)
	}
	for state, n := range containers {
		out <- prometheus.MustNewConstMetric(runningContainers, prometheus.GaugeValue, float64(n), state)
	}
}
