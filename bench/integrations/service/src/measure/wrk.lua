-- Requests of one round. Arguments: KIND BYTES PLACES START
--   range   GET of BYTES bytes, at each of PLACES places once, in a scattered order from START on
--   put     PUT of BYTES bytes, to 64 names in turn
--   append  POST of a record of BYTES bytes

local kind, bytes, places, place, body
local count = 0

function init(args)
   kind, bytes, places, place = args[1], tonumber(args[2]), tonumber(args[3]), tonumber(args[4])
   if kind ~= "range" then body = string.rep("x", bytes) end
end

function request()
   count = count + 1
   if kind == "append" then return wrk.format("POST", "/log", nil, body) end
   if kind == "put" then return wrk.format("PUT", "/files/put-" .. count % 64, nil, body) end
   -- All places once, as their number is a power of two.
   place = (place * 1103515245 + 12345) % places
   local first = place * bytes
   return wrk.format("GET", "/files/table", { ["Range"] = "bytes=" .. first .. "-" .. first + bytes - 1 })
end

function done(summary, latency, requests)
   local errors = summary.errors
   local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
   io.write(string.format("result %d %d %d %d %d\n", summary.requests, summary.duration, failed,
      latency:percentile(50), latency:percentile(99)))
end
