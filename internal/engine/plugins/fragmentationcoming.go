// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/fragmentation"
)

// Learner is a scorer with scores that change when it learns, even if the cluster does not change.
// Version changes whenever scores may have changed, so caches of scores must compare it.
type Learner interface {
	Version(c *cluster.Cluster) uint64
	// Learn records an actually placed pod, with its claims allocated. It is called once for each
	// pod, if the plugin is at Reserve. A mere reservation must not be learnt: it may be undone,
	// and plans and groups reserve room for pods that may never be placed there.
	Learn(c *cluster.Cluster, p *cluster.Pod)
}

// coming is the expected workload, either given or learnt from placed pods. Lessons take effect
// only from time to time, because every node must then be scored again.
type coming struct {
	devices     fragmentation.Devices
	nearPercent int64
	given       bool

	mutex sync.Mutex
	// shapes are the kinds of pods, with their weights as task.Weight.
	shapes map[comingKey]*comingShape
	seen   int64 // number of learnt pods
	next   int64 // number of learnt pods at which lessons take effect
	fading int64 // number of learnt pods at which all weights fade; see fadeWeights
	every  int64 // number of pods between two fadings

	// begun is set if the earlier workload is known, from running pods or from an earlier plugin
	// (Profile.Relearn).
	begun bool

	numbers uint64  // number of futures made so far
	current *future // nil if it must be made
}

// comingKey distinguishes kinds of pods by their demands and their eligible nodes. All other
// properties of a pod are irrelevant here.
type comingKey struct {
	cpu, memory, amount int64
	where               string
}

// comingShape is a kind of pods and its eligible nodes.
type comingShape struct {
	task  fragmentation.Task
	where *nodeChoice // nil: everywhere
}

// nodeChoice is a pod's node selector and required node affinity. A nil choice selects every node.
type nodeChoice struct {
	selector labels.Selector
	terms    *requiredTerms // nil: none
	// labels and required are the source of the fields above.
	labels   map[string]string
	required *v1.NodeSelector
}

// chooseNodes reads the eligible nodes of a pod, and returns a key that is equal for equal choices.
// It returns nil and "" for a pod that may run everywhere.
func chooseNodes(selector map[string]string, required *v1.NodeSelector) (choice *nodeChoice, key string) {
	if len(selector) == 0 && required == nil {
		return nil, ""
	}
	choice = &nodeChoice{selector: labels.SelectorFromSet(selector), labels: selector, required: required}
	key = labels.Set(selector).String()
	if required != nil {
		choice.terms = new(readRequired(required))
		key += "\x00" + required.String()
	}
	return choice, key
}

// match reports whether such pods may run on the node.
func (c *nodeChoice) match(n *cluster.Node) bool {
	return c == nil || c.selector.Matches(n) && (c.terms == nil || c.terms.matchesAny(n))
}

// Lessons first take effect after firstLearning pods. This number then grows by the factor rarer,
// until the interval is mostLearning pods.
const (
	firstLearning = 16
	rarer         = 4
	mostLearning  = 4096
	// thoroughFrom is the number of known pods that justifies the full number of rounds.
	thoroughFrom = 1024
)

// newComing prepares the expected workload: the given tasks, or an empty workload for learning.
func newComing(args *FragmentationArgs, devices fragmentation.Devices) *coming {
	c := &coming{
		devices: devices, nearPercent: args.NearPercent, given: len(args.Tasks) > 0, shapes: map[comingKey]*comingShape{},
		next: firstLearning, every: args.HalfLife / fadings,
	}
	c.fading = c.every
	for i := range args.Tasks {
		t := &args.Tasks[i]
		task := fragmentation.Task{
			CPU: amountOf(t.Requests, v1.ResourceCPU), Memory: amountOf(t.Requests, v1.ResourceMemory),
			Amount: devices.Steps(amountOf(t.Requests, args.Resource)),
		}
		where, key := chooseNodes(t.NodeSelector, t.NodeAffinity)
		c.addTask(task, t.Weight, where, key)
	}
	return c
}

// addTask counts a task with its weight. choice is the key of its eligible nodes (chooseNodes).
func (c *coming) addTask(task fragmentation.Task, weight int64, where *nodeChoice, choice string) {
	key := comingKey{task.CPU, task.Memory, task.Amount, choice}
	s := c.shapes[key]
	if s == nil {
		c.makeRoom()
		s = &comingShape{task: task, where: where}
		c.shapes[key] = s
	}
	s.task.Weight += weight
}

// makeRoom drops the rarest shape if there are too many.
func (c *coming) makeRoom() {
	if len(c.shapes) < maxTasks {
		return
	}
	keys := c.sortedShapes()
	delete(c.shapes, keys[len(keys)-1])
}

// sortedShapes lists the shapes, the most frequent first. Ties have a fixed order, so that the same
// pods lead to the same future.
func (c *coming) sortedShapes() []comingKey {
	return slices.SortedFunc(maps.Keys(c.shapes), func(a, b comingKey) int {
		return cmp.Or(cmp.Compare(c.shapes[b].task.Weight, c.shapes[a].task.Weight), cmp.Compare(a.amount, b.amount),
			cmp.Compare(a.cpu, b.cpu), cmp.Compare(a.memory, b.memory), strings.Compare(a.where, b.where))
	})
}

// onePod is the weight of a newly counted pod; weights fade to a half in fadings steps.
const (
	onePod  = 1 << 10
	fadings = 8
)

// fadeWeights lowers all weights by 1 - 2^(-1/fadings), in 1024ths, and forgets shapes without
// recent pods: after six half-lives a pod has faded to 1/64 of its weight.
func (c *coming) fadeWeights() {
	const part = 85
	for key, s := range c.shapes {
		if s.task.Weight -= (s.task.Weight*part + 1023) / 1024; s.task.Weight < onePod/64 {
			delete(c.shapes, key)
		}
	}
}

// podPlaced counts a placed pod, and applies the lessons after 16, 64, 256, 1024 and 4096 pods, and
// then after every 4096 pods. In between scores do not change, and cached scores stay valid.
func (c *coming) podPlaced(f *Fragmentation, in *cluster.Cluster, p *cluster.Pod) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.given || !c.begun { // not begun: the pod will be read with the running pods
		return
	}
	c.countPod(f.claimedTask(in, p), p)
	c.seen++
	if c.seen >= c.fading {
		c.fading += c.every
		c.fadeWeights()
	}
	if c.seen >= c.next {
		c.next += min(c.next*(rarer-1), mostLearning)
		c.current = nil
	}
}

// countPod counts one pod. The caller holds the mutex.
func (c *coming) countPod(task fragmentation.Task, p *cluster.Pod) {
	if (&NodeAffinity{}).ReadsFor(p)&Identity != 0 {
		return // eligible by node name, which is irrelevant to other pods
	}
	required, _ := podNodeAffinity(p.Spec())
	where, key := chooseNodes(p.Spec().NodeSelector, required)
	c.addTask(task, onePod, where, key)
}

// currentFuture returns the latest version of the future. The first one is derived from the running
// pods. Making a future plays many rounds (see fragmentation.NewRemainders); concurrent callers
// wait.
func (c *coming) currentFuture(f *Fragmentation, in *cluster.Cluster) *future {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.current != nil {
		return c.current
	}
	c.readCluster(f, in)
	c.numbers++
	c.current = c.newFuture(f, in)
	return c.current
}

// begin reads the placed pods before the first placement is learnt by podPlaced, so that no pod
// counts twice.
func (c *coming) begin(f *Fragmentation, in *cluster.Cluster) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.readCluster(f, in)
}

// readCluster learns from the placed pods, in the order of the nodes' names, when it is first
// called. The caller holds the mutex.
func (c *coming) readCluster(f *Fragmentation, in *cluster.Cluster) {
	if c.given || c.begun {
		return
	}
	c.begun = true
	for _, n := range in.SortedNodes() {
		for _, p := range n.Pods {
			c.countPod(f.claimedTask(in, p), p)
		}
	}
}

// future is the expected workload, prepared for use. It is immutable, so scores made with it stay
// comparable.
type future struct {
	number  uint64
	shapes  []comingShape
	devices fragmentation.Devices
	far     *fragmentation.Remainders

	mutex    sync.Mutex
	outlooks map[string]*fragmentation.Outlook // by the shapes that may run on a node
	byLabels sync.Map                          // *cluster.LabelSet to *fragmentation.Outlook
	labels   int                               // approximate size of byLabels; see mostLabels
}

// newFuture prepares the expected workload. It plays fewer rounds if only few pods are known,
// because the sample is rough anyway.
func (c *coming) newFuture(f *Fragmentation, in *cluster.Cluster) *future {
	u := &future{number: c.numbers, devices: c.devices, outlooks: map[string]*fragmentation.Outlook{}}
	var tasks []fragmentation.Task
	for _, key := range c.sortedShapes() {
		tasks = append(tasks, c.shapes[key].task)
		u.shapes = append(u.shapes, *c.shapes[key])
	}
	for i, t := range fragmentation.Weigh(tasks) {
		u.shapes[i].task = t
	}
	conditions := fragmentation.Conditions{
		CPU: c.cpuPerDevice(f, in), NearPercent: c.nearPercent, Rounds: fragmentation.ThoroughRounds,
	}
	if !c.given && c.seen < thoroughFrom {
		conditions.Rounds = fragmentation.QuickRounds
	}
	u.far = fragmentation.NewRemainders(fragmentation.Weigh(tasks), c.devices, conditions)
	return u
}

// mostDescribed bounds the amounts named in a description of the workload.
const mostDescribed = 4

// describe describes the expected workload: the requested amounts of devices, the most frequent
// first. It returns the end of a sentence.
func (u *future) describe(given bool) string {
	// Describe only the amounts: CPU and eligible nodes would make the sentence too long.
	weights, all := map[int64]int64{}, int64(0)
	for i := range u.shapes {
		if t := &u.shapes[i].task; t.Amount > 0 {
			weights[t.Amount] += t.Weight
			all += t.Weight
		}
	}
	amounts := slices.SortedFunc(maps.Keys(weights), func(a, b int64) int {
		return cmp.Or(cmp.Compare(weights[b], weights[a]), cmp.Compare(a, b))
	})

	how := "learnt"
	if given {
		how = "given"
	}
	if len(amounts) == 0 {
		return "; expected pods (" + how + "): none with devices"
	}
	var parts []string
	for _, amount := range amounts[:min(len(amounts), mostDescribed)] {
		devices := float64(amount) / float64(u.devices.Whole())
		parts = append(parts, fmt.Sprintf("%.0f %% want %.4g", 100*float64(weights[amount])/float64(all), devices))
	}
	return "; expected pods (" + how + "): of those with devices, " + strings.Join(parts, ", ")
}

// cpuPerDevice is the CPU per device, in thousandths, of the nodes with devices. Without any such
// node it is very high, so that CPU does not count as scarce.
func (c *coming) cpuPerDevice(f *Fragmentation, in *cluster.Cluster) int64 {
	var cpu, devices int64
	var claimed map[string]int64
	if f.claims != nil {
		claimed = devicesOfDriver(in, f.driver)
	}
	for _, n := range in.SortedNodes() {
		if own := n.Size.Scalars[f.resource]/c.devices.Unit + claimed[n.Name]; own > 0 {
			cpu += n.Size.MilliCPU
			devices += own
		}
	}
	if devices == 0 {
		const plenty = 1 << 30
		return plenty
	}
	return cpu / devices
}

// mostLabels bounds the number of cached label sets: each cluster used for planning has separate
// sets.
const mostLabels = 1 << 16

// outlookOf returns the outlook for nodes with the labels of n. Nodes eligible for the same shapes
// share an outlook. Label sets are looked up by pointer. Two goroutines may prepare the same
// outlook concurrently; the second uses the result of the first.
func (u *future) outlookOf(n *cluster.Node) *fragmentation.Outlook {
	if o, known := u.byLabels.Load(n.Labels); known {
		return o.(*fragmentation.Outlook)
	}
	var tasks []fragmentation.Task
	var key []byte

	for i := range u.shapes {
		// Match outside the lock: matching may be slow, and its result is independent of other
		// goroutines.
		if u.shapes[i].where.match(n) {
			tasks = append(tasks, u.shapes[i].task)
			key = strconv.AppendInt(append(key, ' '), int64(i), 36)
		}
	}

	u.mutex.Lock()
	defer u.mutex.Unlock()
	o := u.outlooks[string(key)]
	if o == nil {
		o = fragmentation.NewOutlook(tasks, u.devices, u.far)
		u.outlooks[string(key)] = o
	}

	if u.labels++; u.labels > mostLabels {
		u.byLabels.Clear()
		u.labels = 1
	}
	u.byLabels.Store(n.Labels, o)
	return o
}
