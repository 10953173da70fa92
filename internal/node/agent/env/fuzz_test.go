package env

import (
	"strings"
	"testing"
)

// FuzzExpand holds expansion against what its rules say of it as a whole.
func FuzzExpand(f *testing.F) {
	for _, seed := range []string{"", "$", "$$", "$(A)", "$$(A)", "$(A$(B))", "x$(", "$(A)$$(B)$", "$é$(é)"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, input string) {
		asWritten := func(name string) string { return "$(" + name + ")" }
		got := expand(input, asWritten)
		if !strings.Contains(input, "$$") && got != input {
			t.Errorf("%q became %q, though nothing in it is known", input, got)
		}
		if escaped := expand(strings.ReplaceAll(input, "$", "$$"), func(string) string { return "REPLACED" }); escaped != input {
			t.Errorf("%q with every dollar sign doubled became %q", input, escaped)
		}
	})
}

// FuzzFileVariable shows that no file, which a container may have written, stops the agent.
func FuzzFileVariable(f *testing.F) {
	for _, seed := range []string{"A='1'", "A='", "=", " A ='x'", "A= 'x'", "A='1' x", "#\n\nA='1\n2' # c\n", "A=1"} {
		f.Add(seed, "A")
	}
	f.Fuzz(func(t *testing.T, content, name string) {
		value, err := fileVariable(content, name)
		if err != nil && value != "" {
			t.Errorf("both %q and %v", value, err)
		}
		if strings.Contains(value, "'") {
			t.Errorf("the value %q has a quote in it", value)
		}
	})
}

// FuzzParseResolvConf shows the same of a resolv.conf.
func FuzzParseResolvConf(f *testing.F) {
	f.Add("nameserver 1.2.3.4\nsearch a b. .\noptions ndots:1 x\n#x")
	f.Fuzz(func(t *testing.T, content string) {
		dns, _ := ParseResolvConf(strings.NewReader(content))
		for _, word := range append(append(dns.Servers, dns.Searches...), dns.Options...) {
			if len(strings.Fields(word)) > 1 {
				t.Errorf("%q is more than a word", word)
			}
		}
	})
}
