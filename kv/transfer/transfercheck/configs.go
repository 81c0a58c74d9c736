package transfercheck

import "slices"

// small is the world that the configurations vary.
func small(name string, t Transport, vary func(*Config)) Config {
	c := Config{Name: name, Transport: t, Requests: []int{1, 1}, Pages: 2, SourcePages: 2, Prefills: 1, Decodes: 1, Attempts: 1, Cancels: true}
	vary(&c)
	return c
}

// Every lists the small configurations with each fault, for one transport. All
// guards are on.
func Every(t Transport) []Config {
	return []Config{
		small("crash of prefill", t, func(c *Config) { c.PrefillCrashes = 1 }),
		small("crash of decode", t, func(c *Config) { c.DecodeCrashes, c.Pages = 1, 1 }),
		small("crash of both", t, func(c *Config) { c.PrefillCrashes, c.DecodeCrashes, c.Pages, c.SourcePages = 1, 1, 1, 1 }),
		small("false suspicion", t, func(c *Config) { c.Suspicions = 1 }),
		small("link breaks at prefill", t, func(c *Config) { c.Breaks, c.SourcePages = 1, 1 }),
		small("too large", t, func(c *Config) { c.Requests, c.SourcePages = []int{1, 2}, 1 }),
		small("no source page", t, func(c *Config) { c.SourcePages = 1 }),
		small("two blocks", t, func(c *Config) { c.Requests, c.Pages = []int{2, 1}, 3 }),
		small("retries", t, func(c *Config) { c.Attempts, c.Pages, c.SourcePages = 2, 1, 1 }),
		small("gateway submits twice", t, func(c *Config) { c.Requests, c.Attempts, c.Twice = []int{1}, 2, true }),
		small("job comes late", t, func(c *Config) { c.SlowJoin, c.Pages = true, 1 }),
		small("late reports", t, func(c *Config) { c.SlowReports, c.Pages = true, 1 }),
		small("decode grows", t, func(c *Config) { c.Grow, c.Pages = true, 2 }),
		small("stray messages", t, func(c *Config) { c.Strays, c.PrefillCrashes, c.Pages, c.SourcePages = 1, 1, 1, 1 }),
		small("lost write", t, func(c *Config) { c.LostWrites, c.Pages = 1, 1 }),
		small("two prefills", t, func(c *Config) { c.Prefills, c.Pages, c.SourcePages = 2, 1, 1 }),
		small("two decodes", t, func(c *Config) { c.Decodes, c.Pages, c.SourcePages = 2, 1, 1 }),
	}
}

// Extensions lists the worlds of prefix caches, of a gateway and of ranks, for one
// transport: each extension at its own smallest size, with its faults.
func Extensions(t Transport) []Config {
	return slices.Concat(PrefixWorlds(t), GatewayWorlds(t), RankWorlds(t))
}

// LargeExtensions are worlds of them that take minutes.
func LargeExtensions(t Transport) []Config {
	suspected := sourceSharing("prefix at prefill, false suspicion", t, func(c *Config) { c.Suspicions, c.Cancels = 1, false })
	again := RankWorlds(t)[1]
	again.Name, again.Requests = "two ranks, two requests, crash of prefill", []int{1, 1}
	return []Config{suspected, again}
}

// CI is the set that each run of the tests explores whole: every fault on every
// kind of transport, and torn writes.
func CI() (list []Config) {
	for _, t := range []Transport{Receiver, Stream, OneSided, DrainOnly} {
		list = append(list, Every(t)...)
	}
	return append(list,
		small("torn writes", TornWrite, func(c *Config) { c.Pages = 1 }),
		small("torn writes", Poisoned, func(c *Config) { c.Pages = 1 }),
		small("torn writes, crash of prefill", Poisoned, func(c *Config) { c.PrefillCrashes, c.Pages, c.SourcePages = 1, 1, 1 }),
		small("torn writes, crash of prefill", TornWrite, func(c *Config) { c.PrefillCrashes, c.Pages, c.SourcePages = 1, 1, 1 }),
	)
}

// Daily is what every change is tested with: CI, and the extensions.
func Daily() []Config {
	list := CI()
	for _, t := range extensionTransports {
		list = append(list, Extensions(t)...)
	}
	return list
}

// extensionTransports are the kinds of transport that differ for the extensions.
var extensionTransports = []Transport{Receiver, OneSided, DrainOnly}

// Nightly is the set for a night: the worlds of CI, those of two requests with
// another, the extensions, also the large ones, and three requests, one of two
// pages, on up to two workers of a kind. Only of the largest nothing is asked but
// safety.
func Nightly() (list []Config) {
	for _, c := range CI() {
		if len(c.Requests) > 1 {
			c.Requests = append(slices.Clone(c.Requests), 1)
		}
		list = append(list, c)
	}
	for _, t := range extensionTransports {
		list = slices.Concat(list, Extensions(t), LargeExtensions(t))
	}
	three := func(name string, t Transport, prefills, decodes int) Config {
		return small(name, t, func(c *Config) {
			c.Requests, c.Pages, c.SourcePages, c.Prefills, c.Decodes, c.PrefillCrashes = []int{2, 1, 1}, 3, 2, prefills, decodes, 1
			c.SafetyOnly, c.DepthFirst = prefills+decodes > 2, prefills+decodes > 3
		})
	}
	for _, t := range []Transport{DrainOnly, OneSided, Receiver, Stream} {
		list = append(list, three("three pages", t, 1, 1))
	}
	return append(list,
		three("three pages, two prefills", DrainOnly, 2, 1),
		three("three pages, two decodes", DrainOnly, 1, 2),
		three("three pages, two prefills", OneSided, 2, 1),
		three("three pages, two by two", DrainOnly, 2, 2),
	)
}
