-- Queries of ClickBench's kind, by its numbers, over columns of its table `hits`. Ties are broken, so that an
-- answer is the same in every run; averages are of small integers, whose sums are exact.

-- hits-00
SELECT count(*) FROM hits;

-- hits-01
SELECT count(*) FROM hits WHERE "AdvEngineID" <> 0;

-- hits-02
SELECT sum("AdvEngineID"), count(*), avg("ResolutionWidth") FROM hits;

-- hits-04
SELECT count(DISTINCT "UserID") FROM hits;

-- hits-05
SELECT count(DISTINCT "SearchPhrase") FROM hits;

-- hits-06
SELECT min("EventDate"), max("EventDate") FROM hits;

-- hits-07
SELECT "AdvEngineID", count(*) AS c FROM hits WHERE "AdvEngineID" <> 0 GROUP BY "AdvEngineID" ORDER BY c DESC, 1;

-- hits-08
SELECT "RegionID", count(DISTINCT "UserID") AS u FROM hits GROUP BY "RegionID" ORDER BY u DESC, 1 LIMIT 10;

-- hits-09
SELECT "RegionID", sum("AdvEngineID"), count(*) AS c, avg("ResolutionWidth"), count(DISTINCT "UserID")
FROM hits GROUP BY "RegionID" ORDER BY c DESC, 1 LIMIT 10;

-- hits-12
SELECT "SearchPhrase", count(*) AS c FROM hits WHERE "SearchPhrase" <> ''
GROUP BY "SearchPhrase" ORDER BY c DESC, 1 LIMIT 10;

-- hits-14
SELECT "SearchEngineID", "SearchPhrase", count(*) AS c FROM hits WHERE "SearchPhrase" <> ''
GROUP BY "SearchEngineID", "SearchPhrase" ORDER BY c DESC, 1, 2 LIMIT 10;

-- hits-15
SELECT "UserID", count(*) AS c FROM hits GROUP BY "UserID" ORDER BY c DESC, 1 LIMIT 10;

-- hits-19
SELECT count(*), min("WatchID") FROM hits WHERE "UserID" = (SELECT min("UserID") FROM hits);

-- hits-20
SELECT count(*) FROM hits WHERE "URL" LIKE '%google%';

-- hits-21
SELECT "SearchPhrase", min("URL"), count(*) AS c FROM hits
WHERE "URL" LIKE '%google%' AND "SearchPhrase" <> '' GROUP BY "SearchPhrase" ORDER BY c DESC, 1 LIMIT 10;

-- hits-23
SELECT * FROM hits WHERE "URL" LIKE '%google%' ORDER BY "EventTime", "WatchID" LIMIT 10;

-- hits-24
SELECT "SearchPhrase" FROM hits WHERE "SearchPhrase" <> '' ORDER BY "EventTime", "WatchID" LIMIT 10;

-- hits-27
SELECT "CounterID", avg(length("URL")) AS l, count(*) AS c FROM hits WHERE "URL" <> ''
GROUP BY "CounterID" HAVING count(*) > 500 ORDER BY l DESC, 1 LIMIT 25;

-- hits-32
SELECT "WatchID", "ClientIP", count(*) AS c, sum("IsRefresh"), avg("ResolutionWidth") FROM hits
GROUP BY "WatchID", "ClientIP" ORDER BY c DESC, 1, 2 LIMIT 10;

-- hits-33
SELECT "URL", count(*) AS c FROM hits GROUP BY "URL" ORDER BY c DESC, 1 LIMIT 10;

-- hits-36
SELECT "URL", count(*) AS views FROM hits
WHERE "CounterID" = 62 AND "EventDate" >= '2013-07-01' AND "EventDate" <= '2013-07-31'
    AND "DontCountHits" = 0 AND "IsRefresh" = 0 AND "URL" <> ''
GROUP BY "URL" ORDER BY views DESC, 1 LIMIT 10;

-- hits-39
SELECT "TraficSourceID", "SearchEngineID", "AdvEngineID",
    CASE WHEN "SearchEngineID" = 0 AND "AdvEngineID" = 0 THEN "Referer" ELSE '' END AS src, "URL" AS dst, count(*) AS views
FROM hits WHERE "CounterID" = 62 AND "EventDate" >= '2013-07-01' AND "EventDate" <= '2013-07-31' AND "IsRefresh" = 0
GROUP BY 1, 2, 3, 4, 5 ORDER BY views DESC, 1, 2, 3, 4, 5 LIMIT 10;

-- hits-41
SELECT "WindowClientWidth", "DontCountHits", count(*) AS views FROM hits
WHERE "CounterID" BETWEEN 60 AND 80 AND "IsRefresh" = 0
GROUP BY "WindowClientWidth", "DontCountHits" ORDER BY views DESC, 1, 2 LIMIT 10;
