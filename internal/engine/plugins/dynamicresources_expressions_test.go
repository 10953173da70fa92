package plugins

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestOneNamespacesExpressionsWaitAmongThemselves: the compiler is each namespace's in its turn,
// however many pods of another wait for it.
func TestOneNamespacesExpressionsWaitAmongThemselves(t *testing.T) {
	setOf := func(namespace string, which, expressions int) *expressionSet {
		set := newExpressionSet(nil)
		for i := range expressions {
			text := fmt.Sprintf(`device.driver != "%s-%d-%d"`, namespace, which, i)
			set.list = append(set.list, text+strings.Repeat(` && device.driver != "x"`, 20)) // some milliseconds
		}
		return set
	}
	const pods, expressions = 32, 3
	sets := expressionSets{}
	var all sync.WaitGroup
	sets.compiling.Lock() // until all of them wait
	for i := range pods {
		set := setOf("hostile", i, expressions)
		all.Go(func() { sets.compileSet(t.Context(), "hostile", set) })
	}
	for waiting := 0; waiting < pods; time.Sleep(10 * time.Microsecond) {
		sets.mutex.Lock()
		if mine := sets.turns["hostile"]; mine != nil {
			waiting = mine.waiting
		}
		sets.mutex.Unlock()
	}

	began := time.Now()
	sets.compiling.Unlock()
	sets.compileSet(t.Context(), "other", setOf("other", 0, 1))
	waited := time.Since(began)
	all.Wait()
	if whole := time.Since(began); waited > whole/8 {
		t.Errorf("the one expression of another namespace waited %v of the %v that all %d took", waited, whole, pods*expressions)
	}
}

// TestAnExpressionIsCompiledOnce: what it costs is found with what was compiled to be evaluated,
// and both are known when the pod is decided.
func TestAnExpressionIsCompiledOnce(t *testing.T) {
	sets, set := expressionSets{}, newExpressionSet([]string{`device.driver == "a"`, `device.driver == "b"`})
	sets.compileSet(t.Context(), "default", set)
	if set.costs.cache != set.cache {
		t.Error("costs are found with a cache of their own: every expression is compiled again for it")
	}
	for _, expression := range set.list {
		if _, known := set.costs.known[expression]; !known {
			t.Errorf("what %s costs is found by the goroutine that decides", expression)
		}
	}
}
